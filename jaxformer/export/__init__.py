"""Trained models in the formats of other programs, and published models as ours."""
