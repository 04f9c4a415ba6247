"""The paper, section 5: loss, optimiser, step, checkpoints and the loop."""
