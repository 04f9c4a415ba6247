"""Convolutional sequence-to-sequence learning (ConvS2S, Gehring et al. 2017)."""
