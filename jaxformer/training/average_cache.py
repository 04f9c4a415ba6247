"""The last average of checkpoints of each run, kept in the user's cache folder.

Opening a checkpoint array by array takes longer than translating a few sentences
(docs/speed.md), and an average opens several.
"""

import contextlib
import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.models.sequence_model import Parameters
from jaxformer.system.files import CHECKSUMS, cache_folder, write_atomically
from jaxformer.training.checkpoint_files import find_damage

MOST_KEPT = 8  # runs
_DIGEST_BYTES = 32


def kept_average(
    checkpoints: Sequence[Path],
    field: str,
    make: Callable[[], Parameters],
    *,
    is_damaged: Callable[[Path], object] = find_damage,
) -> Parameters:
    """Return nested dicts of numpy arrays: the file's if it has them, else `make()`'s.

    Each folder of checkpoints has one file. It begins with the digest of its content,
    of `field`, and of the checkpoints' checksums. `make` is called if the digest
    differs, and for damaged checkpoints, which it refuses. A cache that cannot be
    written is no error. Raises RemovedError for checkpoints that are gone.
    """
    if len(checkpoints) == 1:
        return make()
    try:
        folder = cache_folder("averages")
    except FileNotFoundError:
        return make()
    file = folder / hashlib.sha256(bytes(checkpoints[0].parent)).hexdigest()

    def digest(content: bytes) -> bytes:
        found = hashlib.sha256(content)
        found.update(field.encode())
        for checkpoint in checkpoints:
            found.update((checkpoint / CHECKSUMS).read_bytes())
        return found.digest()

    with contextlib.suppress(OSError):
        content = file.read_bytes()
        known, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if known == digest(content) and not any(map(is_damaged, checkpoints)):
            return unflatten_dict(dict(np.load(io.BytesIO(content))), sep="/")
    average, buffer = make(), io.BytesIO()
    np.savez(buffer, **flatten_dict(average, sep="/"))
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, digest(buffer.getvalue()) + buffer.getvalue())
        by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in by_age[:-MOST_KEPT]:
            old.unlink()
    return average
