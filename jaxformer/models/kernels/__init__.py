"""What is there for speed alone: each equals a plain formula of the files around it."""
