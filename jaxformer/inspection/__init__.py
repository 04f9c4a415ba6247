"""What a parallel corpus holds, for `--mode=check`."""
