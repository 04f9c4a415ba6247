"""Recurrent translation models, with attention and without."""
