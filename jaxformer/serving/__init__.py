"""A trained model over HTTP: an API, and a page to try it and see its attention."""
