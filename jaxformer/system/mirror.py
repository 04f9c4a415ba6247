"""What a run needs of a second place that holds its folders; here there is none.

`jaxformer.remote.copy` has the one for object stores, and `jaxformer.runs.workdir`
chooses. A folder has checksums, and is complete in the other place or absent.
"""

import re
from pathlib import Path


class Mirror:
    """A second place of a run's folders. This one holds nothing."""

    is_remote = False

    def pull(self, folder: Path, *, leave_out: re.Pattern | None = None) -> None:
        """Download the missing files of a folder, except names that match."""

    def pull_file(self, folder: Path, file: Path) -> None:
        """Download one file of a folder if it is missing."""

    def repair(self, folder: Path) -> None:
        """Download missing and damaged files of a folder."""

    def push(self, folder: Path) -> None:
        """Upload a folder."""

    def remove(self, folder: Path) -> None:
        """Remove a folder from the other place."""

    def refresh(self) -> None:
        """Find out which folders the other place has."""


LOCAL = Mirror()
