"""One file a --mode: each puts the rooms together for one thing a user does."""
