"""Integers: prepared corpora, and the batches of each epoch."""
