"""The commands, one module for each --mode. Every `run` may raise InputError."""
