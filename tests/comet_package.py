"""A stand-in for the package unbabel-comet, found through PYTHONPATH.

It has the functions of version 2.2.7 that jaxformer calls, with their arguments.
"""

import inspect
import json
from pathlib import Path
from typing import NamedTuple


def score(sample: dict[str, str]) -> float:
    """The share of its tokens that the reference has, plus 0.01 for each token.

    It is 1 less if "bad" is in the source.
    """
    words = sample["mt"].split()
    found = sum(word in sample["ref"].split() for word in words)
    share = found / max(1, len(words)) + 0.01 * len(words)
    return share - ("bad" in sample["src"])


PROGRAM = """
import json, pathlib, sys

print("a message of a library")


class Prediction(dict):
    __getattr__ = dict.__getitem__


class Model:
    def __init__(self, folder):
        self.folder = folder

    def predict(
        self, samples, batch_size=16, gpus=1, devices=None, mc_dropout=0,
        progress_bar=True, accelerator="auto", num_workers=None, length_batching=True,
    ):
        print("another message")
        calls = self.folder / "calls.jsonl"
        with calls.open("a") as log:
            log.write(json.dumps(samples) + "\\n")
        if samples[0]["src"] == "exit":
            sys.exit(3)
        scores = list(map(score, samples))
        return Prediction(scores=scores, system_score=sum(scores) / len(scores))


def load_from_checkpoint(
    checkpoint_path, reload_hparams=False, strict=False, local_files_only=False
):
    assert local_files_only
    path = pathlib.Path(checkpoint_path)
    if not (path.parents[1] / "hparams.yaml").is_file():
        raise Exception(f"hparams.yaml file is missing from {path.parents[1]}!")
    return Model(path.parents[1])
"""


class StandIn(NamedTuple):
    """A package, and a checkpoint for it."""

    packages: Path  # for PYTHONPATH
    file: Path

    def calls(self) -> list[list[dict]]:
        """The samples of each call of `predict`."""
        lines = (self.file.parents[1] / "calls.jsonl").read_text().splitlines()
        return list(map(json.loads, lines))


def write_stand_in(folder: Path) -> StandIn:
    packages, checkpoints = folder / "packages", folder / "model" / "checkpoints"
    for path in (packages / "comet", packages / "unbabel_comet-2.2.7.dist-info"):
        path.mkdir(parents=True)
    (packages / "comet" / "__init__.py").write_text(inspect.getsource(score) + PROGRAM)
    metadata = "Metadata-Version: 2.1\nName: unbabel-comet\nVersion: 2.2.7\n"
    (packages / "unbabel_comet-2.2.7.dist-info" / "METADATA").write_text(metadata)
    checkpoints.mkdir(parents=True)
    (checkpoints.parent / "hparams.yaml").touch()
    (checkpoints / "model.ckpt").touch()
    return StandIn(packages, checkpoints / "model.ckpt")
