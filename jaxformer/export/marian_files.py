"""The files of a Marian checkpoint: JSON, safetensors, and what is wrong with them.

`jaxformer.export.marian` and `jaxformer.export.marian_import` write and read a folder
through it. The package safetensors (extra `export`) is imported where it is used.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from jaxformer.errors import InputError
from jaxformer.export.marian_layout import sines_first
from jaxformer.models.layers import sinusoidal_positions

ONE_FILE = "model.safetensors"
_POSITIONS = (
    "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight",
)  # fmt: skip
_ROUNDING = 2**-8  # of a sinusoid that was stored in bfloat16


class Tensors:
    """The tensors of a folder's safetensors, by name, as float32."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError for files that are missing or damaged."""
        self._folder = folder
        self._tensors: dict[str, np.ndarray] = {}
        for file in _safetensors(folder):
            self._tensors.update(_load(file))
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """One of them. Raises InputError if it is not there, or of another shape."""
        if name not in self._tensors:
            raise InputError(
                f"the checkpoint in {self._folder} has no tensor {name}; put back its "
                "own files, or import another model"
            )
        tensor = self._tensors[name]
        if shape is not None and tensor.shape != shape:
            raise InputError(
                f"the checkpoint in {self._folder} has {name} of shape {tensor.shape} "
                f"where its config.json asks for {shape}; put back its own files"
            )
        self._taken.add(name)
        return tensor.astype(np.float32)

    def take_same(self, names: tuple[str, ...], shape: tuple[int, ...]) -> np.ndarray:
        """The one matrix that those of these names that are there have to be."""
        first, *others = [name for name in names if name in self._tensors] or names[:1]
        matrix = self.take(first, shape)
        for name in others:
            if not np.array_equal(self.take(name, shape), matrix):
                raise InputError(
                    f"the checkpoint in {self._folder} has another matrix {name} than "
                    f"{first}, where the paper has one for all; import another model"
                )
        return matrix

    def require_sinusoids(self, d_model: int) -> None:
        """Raise InputError if there are positions that are not section 3.5's."""
        for name in self._tensors.keys() & set(_POSITIONS):
            table = self.take(name)
            wanted = sinusoidal_positions(len(table), d_model)[:, sines_first(d_model)]
            if table.shape != wanted.shape or abs(table - wanted).max() > _ROUNDING:
                raise InputError(
                    f"the checkpoint in {self._folder} has positions {name} that are "
                    "not the paper's sinusoids; import another model"
                )

    def require_all_taken(self) -> None:
        """Raise InputError if there is a tensor that our model has no place for."""
        left = sorted(self._tensors.keys() - self._taken)
        if left:
            raise InputError(
                f"the checkpoint in {self._folder} has a tensor {left[0]}, for which "
                "the paper's model has no place; import another model"
            )


def _safetensors(folder: Path) -> list[Path]:
    """The files that hold the tensors: one, or those that an index names."""
    one = folder / ONE_FILE
    index = folder / f"{ONE_FILE}.index.json"
    if one.is_file():
        return [one]
    if index.is_file():
        names = set(read_json(index).get("weight_map", {}).values())
        return [folder / name for name in sorted(names)]
    if (folder / "pytorch_model.bin").is_file():
        raise InputError(
            f"{folder} has its parameters in pytorch_model.bin, which can hold any "
            "program; convert it once, where Transformers is installed, with: python "
            '-c "from transformers import MarianMTModel as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    raise InputError(
        f"{folder} has no model.safetensors; download the whole checkpoint"
    )


def write_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write them as the folder's one file; Transformers asks for the metadata."""
    content = _package().numpy.save(tensors, metadata={"format": "pt"})
    (folder / ONE_FILE).write_bytes(content)


def _package() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise InputError(
            f"a checkpoint of Hugging Face needs the package safetensors ({error}); "
            "run: pip install 'jaxformer[export]'"
        ) from error
    return safetensors


def _load(file: Path) -> dict[str, np.ndarray]:
    package = _package()
    try:
        return package.numpy.load_file(file)
    except (OSError, package.SafetensorError, TypeError, KeyError) as error:
        raise InputError(
            f"{file} cannot be read ({error}); download it again"
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises InputError where there is none."""
    try:
        values = json.loads(read_bytes(file))
        if isinstance(values, dict):
            return values
    except ValueError:
        pass
    raise InputError(f"{file} is no JSON object; download the checkpoint again")


def read_bytes(file: Path) -> bytes:
    """A whole file. Raises InputError where there is none."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}); --input names the folder of a "
            "whole Marian checkpoint, its tokeniser's files included"
        ) from None
