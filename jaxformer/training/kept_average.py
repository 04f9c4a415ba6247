"""The last average of checkpoints, kept in a file beside them.

Opening a checkpoint array by array takes longer than translating a few sentences
(docs/speed.md), and an average opens several.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xxhash
from flax.serialization import msgpack_restore, msgpack_serialize

from jaxformer import processes
from jaxformer.files import CHECKSUMS, write_atomically
from jaxformer.run_copy import is_copied

_NAME, _DIGEST_BYTES = "average", 16


def kept_average(
    checkpoints: Sequence[Path], field: str, make: Callable[[], Any]
) -> Any:
    """Return nested dicts of numpy arrays: the file's if it has them, else `make()`'s.

    The file is beside the checkpoints. It begins with the digest of its content, of
    `field`, and of the checkpoints' checksums, so a damaged file and another average
    are made anew. A folder that cannot be written is no error. Several processes, and
    the local copy of a run on an object store, have no file.
    """
    file = checkpoints[0].with_name(_NAME)
    if processes.are_several() or is_copied(file.parent) or len(checkpoints) == 1:
        return make()

    def digest(content: bytes) -> bytes:
        found = xxhash.xxh3_128(content)
        found.update(field.encode())
        for checkpoint in checkpoints:
            found.update((checkpoint / CHECKSUMS).read_bytes())
        return found.digest()

    with contextlib.suppress(OSError):
        content = memoryview(file.read_bytes())
        if content[:_DIGEST_BYTES] == digest(content[_DIGEST_BYTES:]):
            return msgpack_restore(bytes(content[_DIGEST_BYTES:]))
    average = make()
    content = msgpack_serialize(average)
    with contextlib.suppress(OSError):
        write_atomically(file, digest(content) + content)
    return average
