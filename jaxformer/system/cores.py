"""The cores of this machine."""

import os


def usable_cores() -> int:
    """Return how many cores this process may use."""
    can_tell = hasattr(os, "sched_getaffinity")  # macOS cannot
    return len(os.sched_getaffinity(0)) if can_tell else os.cpu_count()
