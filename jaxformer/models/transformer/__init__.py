"""Section 3: the Transformer."""
