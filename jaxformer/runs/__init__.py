"""A run, made or opened: its folder, training, translators, estimates."""
