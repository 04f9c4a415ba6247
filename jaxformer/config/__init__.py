"""Every config key: its meaning, its unit and its bounds."""
