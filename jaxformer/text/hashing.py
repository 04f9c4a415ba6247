"""Random numbers that depend on their place alone."""

import numpy as np


def mix(values: np.ndarray) -> np.ndarray:
    """Mix the bits of uint64 [...]: the output function of splitmix64.

    Steele, Lea and Flood 2014, with the multipliers of Stafford's variant 13.
    """
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
