"""Other people's formats: a trained model leaves for programs that serve it."""
