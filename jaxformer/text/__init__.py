"""Text: sentence pairs from files, tokenisers, cleaning."""
