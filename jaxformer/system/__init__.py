"""Errors, files, processes and progress; nothing here knows of translation."""
