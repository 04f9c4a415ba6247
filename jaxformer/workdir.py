"""A run's folder: everything that training leaves and translation needs.

    config.json       the resolved config, the direction, the tokeniser's hash, versions
    tokenizer.model   SentencePiece; of an imported model a zip file of two, with pieces
    corpus/           tokenised text, with a report of what was dropped
    checkpoints/      the training state
    metrics.jsonl, tensorboard/

The folder needs nothing outside itself, and what does not belong to it is refused.
"""

import json
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import InputError

# A run may be continued with other values of these; all others define what was learnt.
FREE_SECTIONS = ("decoding", "mesh")
FREE_KEYS = {
    "training": (
        "steps", "tokens_per_microbatch", "rematerialise", "log_every", "eval_every",
        "save_every", "keep", "average", "max_bad_steps", "on_divergence",
    ),
    "batches": ("executor",),
    "model": ("fused_attention",),
    "data": (
        "directory", "data_dir", "download", "test", "test_source", "test_target",
    ),
}  # fmt: skip
# What runs did before these keys of the config existed: records made then lack them.
EARLIER_VALUES = {
    "model": {
        "attention_bias": False, "activation": "relu", "logits_bias": False,
        "layer_norm_epsilon": 1e-6, "attention_window": None,
        "fused_attention": False,
    },
    "batches": {"row_multiple": 1},  # on one device
    "training": {
        "max_bad_steps": 10, "on_divergence": "stop", "rematerialise": False,
    },
}  # fmt: skip
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "sentencepiece")


@dataclass(frozen=True)
class Workdir:
    """Paths within a run's folder, and its record of config and tokeniser."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.model"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def has_checkpoints(self) -> bool:
        """Whether something has been learnt here, which belongs to one config."""
        return any(self.checkpoints.glob("[0-9]*"))

    def create(self) -> None:
        """Make the folder. Raises InputError if it cannot be made or written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the workdir {self.path} cannot be made: {error.strerror}; "
                "choose another --workdir"
            ) from error
        if not os.access(self.path, os.W_OK):
            raise InputError(
                f"the workdir {self.path} is not writable; choose another --workdir"
            )

    def read_record(self) -> dict:
        """What `write_record` wrote, with EARLIER_VALUES of keys that it lacks.

        Raises InputError if there is no run here.
        """
        try:
            record = json.loads(self.config_file.read_text())
            if not {"config", "tokenizer"} <= set(record):
                raise ValueError("no config or no tokenizer in it")
            config = record["config"]
            for section in EARLIER_VALUES.keys() & config.keys():
                config[section] = {**EARLIER_VALUES[section], **config[section]}
            return record
        except FileNotFoundError:
            raise InputError(
                f"there is no run in {self.path} (no config.json); train one with "
                f"--config=... --workdir={self.path}"
            ) from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.config_file} cannot be read ({error}); put a copy back, or "
                "choose another --workdir"
            ) from None

    def write_record(self, config: dict, tokenizer: Tokenizer) -> None:
        """Record what this run is, in one step that is complete or not done at all."""
        record = {
            "config": config,
            "direction": direction(config),
            "tokenizer": {"sha256": tokenizer.hash, "vocab_size": tokenizer.vocab_size},
            "versions": installed_versions(),
        }
        text = json.dumps(record, indent=2, sort_keys=True) + "\n"
        if self.config_file.exists() and self.config_file.read_text() == text:
            return
        partial = self.config_file.with_suffix(".partial")
        partial.write_text(text)
        os.replace(partial, self.config_file)

    def require_same_run(self, config: dict) -> None:
        """Raise InputError if `config` asks for another run than the recorded one."""
        recorded = self.read_record()["config"]
        for section, values in json.loads(json.dumps(config)).items():
            if section in FREE_SECTIONS:
                continue
            before = recorded.get(section, {})
            for key in sorted(values.keys() | before.keys()):
                if key in FREE_KEYS.get(section, ()):
                    continue
                if values.get(key) != before.get(key):
                    raise InputError(
                        f"{self.path} holds a run with {section}.{key}="
                        f"{before.get(key)!r}, and this config says "
                        f"{values.get(key)!r}; choose that value or another --workdir"
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


def direction(config: dict) -> str:
    """Source and target language of a config, such as "en-de"."""
    data = config["data"]
    return f"{data['source_language']}-{data['target_language']}"


def installed_versions() -> dict[str, str]:
    """Versions of those packages that decide a run's numbers and are installed."""
    versions = {}
    for package in ("jaxformer", *PACKAGES):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
