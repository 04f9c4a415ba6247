"""The paper, section 3: arrays and parameters in, arrays out."""
