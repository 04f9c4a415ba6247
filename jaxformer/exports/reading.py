"""Read a published model of whatever kind as our parameters."""

from pathlib import Path

import jax
import numpy as np

from jaxformer.exports import huggingface
from jaxformer.exports.checkpoint import Checkpoint, UnsupportedError
from jaxformer.exports.huggingface import fault
from jaxformer.exports.m2m100 import read_m2m100
from jaxformer.exports.marian_import import read_marian
from jaxformer.exports.marian_npz import decoder_files, read_npz
from jaxformer.system.errors import InputError

READERS = {"marian": read_marian, "m2m_100": read_m2m100}  # by `model_type`


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a folder. Raises InputError if it is incomplete, damaged or unsupported."""
    try:
        found = _read(folder)
        for path, leaf in jax.tree.leaves_with_path(found.params):
            if not np.isfinite(leaf).all():
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                raise UnsupportedError(f"its {name} has numbers that are not finite")
        return found
    except OSError as error:
        raise InputError(
            f"the checkpoint cannot be read ({error}); download it, for example with: "
            "hf download Helsinki-NLP/opus-mt-en-de --local-dir FOLDER; a folder of "
            "Marian's has model.npz and decoder.yml"
        ) from None
    except UnsupportedError as error:
        raise InputError(
            f"{folder} cannot be imported: {error}; put back the checkpoint's own "
            "files, or import another model"
        ) from None


def _read(folder: Path) -> Checkpoint:
    if not (folder / "config.json").exists() and decoder_files(folder):
        return read_npz(folder)
    settings = huggingface.read_json(folder / "config.json")
    if str(settings.get("model_type")) not in READERS:
        raise fault(settings, "model_type", f"not one of {', '.join(READERS)}")
    return READERS[settings["model_type"]](folder)
