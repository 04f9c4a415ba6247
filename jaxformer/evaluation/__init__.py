"""Scores of translations against references, with intervals and tests."""
