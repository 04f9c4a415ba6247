"""The folder of a run: everything that training writes and translation needs.

    config.json       the resolved config, the direction, the tokeniser's hash, versions
    tokenizer.model   SentencePiece; of an imported model a zip file of two, with pieces
    corpus/           tokenised text, with a report of what was dropped
    checkpoints/      the training state
    metrics.jsonl, tensorboard/

The folder needs nothing outside itself; files of another run are refused.
"""

import json
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jaxformer.config import Config
from jaxformer.config_files import ConfigRequest, parse_config
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import InputError
from jaxformer.files import write_atomically

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "sentencepiece")


class Workdir:
    """The paths within a run's folder, and its record of config and tokeniser."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.tokenizer_file = path / "tokenizer.model"
        self.checkpoints = path / "checkpoints"

    def has_checkpoints(self) -> bool:
        """Whether there is a finished checkpoint."""
        return any(self.checkpoints.glob("[0-9]*"))

    def create(self) -> None:
        """Make the folder. Raises InputError if it cannot be made."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the workdir {self.path} cannot be made: {error.strerror}; "
                "use another workdir"
            ) from error

    def read_record(self) -> dict:
        """Read the record. Raises InputError if it is missing or damaged."""
        try:
            record = json.loads(self.config_file.read_text())
            if not {"config", "tokenizer"} <= set(record):
                raise ValueError("it has no config or no tokenizer")
            return record
        except FileNotFoundError:
            raise InputError(
                f"there is no run in {self.path} (no config.json); train one first"
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{self.config_file} cannot be read ({error}); put a copy back, or "
                "use another workdir"
            ) from None

    def write_record(self, config: Config, tokenizer: Tokenizer) -> None:
        """Record the config, the tokeniser and the versions of packages."""
        record = {
            "config": config.as_dict(),
            "direction": config.data.direction,
            "tokenizer": {"sha256": tokenizer.hash, "vocab_size": tokenizer.vocab_size},
            "versions": installed_versions(),
        }
        text = json.dumps(record, indent=2, sort_keys=True) + "\n"
        if not self.config_file.exists() or self.config_file.read_text() != text:
            write_atomically(self.config_file, text)

    def resolve(self, request: ConfigRequest) -> Config:
        """Return the config of a file, or the recorded one, with values replaced.

        Raises InputError for a wrong value, and if the folder holds another run.
        """
        recorded = self.read_record()["config"] if request.values is None else None
        config = parse_config(request.resolve(recorded))
        if self.has_checkpoints():
            self.require_same_run(config)
        return config

    def require_same_run(self, config: Config) -> None:
        """Raise InputError if a key of `config` that is not free was changed."""
        for name, before, value in config.changes(self.read_record()["config"]):
            raise InputError(
                f"{self.path} holds a run with {name}={before!r}, and this config says "
                f"{value!r}; use the run's value or another workdir"
            )

    def read_tokenizer(self) -> Tokenizer:
        """Load the run's tokeniser. Raises InputError if it is not the recorded one."""
        tokenizer = Tokenizer.load(self.tokenizer_file)
        expected = self.read_record()["tokenizer"]["sha256"]
        if tokenizer.hash != expected:
            raise InputError(
                f"{self.tokenizer_file} is not the tokeniser that this run was trained "
                f"with (sha256 {tokenizer.hash[:12]} instead of {expected[:12]}); put "
                "the original back"
            )
        return tokenizer


def installed_versions() -> dict[str, str]:
    """Versions of the installed packages that decide a run's numbers."""
    versions = {}
    for name in ("jaxformer", *PACKAGES):
        with suppress(PackageNotFoundError):  # jaxformer in a checkout
            versions[name] = version(name)
    return versions
