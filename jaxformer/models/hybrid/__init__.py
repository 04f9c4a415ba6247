"""An encoder of one architecture with a decoder of another."""
