"""What a program would do on an accelerator, by the accelerator's own compiler."""
