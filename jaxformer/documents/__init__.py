"""Documents: what is translated in HTML, XML, subtitles and other files."""
