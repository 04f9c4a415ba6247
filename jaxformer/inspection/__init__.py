"""What a parallel corpus holds, for `jaxformer check`."""
