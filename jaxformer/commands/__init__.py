"""The commands, one module for each --mode."""
