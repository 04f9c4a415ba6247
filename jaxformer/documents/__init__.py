"""Translate the text in HTML, XML, subtitles and other files, and keep the rest."""
