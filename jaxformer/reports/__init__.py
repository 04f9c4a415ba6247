"""Reports of runs, corpora and attention: pages without a network, and pictures."""
