"""The paper, section 6.1: search, translation and scores."""
