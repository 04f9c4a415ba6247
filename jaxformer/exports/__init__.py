"""Transformers in the formats of other programs, and back."""
