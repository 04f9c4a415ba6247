"""Put together what benchmarks/gpu.py needs on a machine without a network.

A pack is a folder: the package, the benchmarks, the commit, wheels, and the text of
configs/europarl_enfr.py or CTranslate2. The machine has Linux on x86-64, Python 3.12,
JAX for its GPU, flax, optax, orbax-checkpoint, sentencepiece, sacreBLEU, pyarrow,
PyTorch and Transformers.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_session import describe_commit
from benchmarks.harness import ROOT
from jaxformer.system.errors import InputError

WHEELS, TEXT = ROOT / "wheels", ROOT / "text"  # of a pack
PYTHON, GLIBC = "3.12", (39, 35, 34, 31, 28, 27, 24, 17)  # versions, 2.N
# What such a machine lacks.
PACKAGES = (
    "ml_collections", "sacremoses", "sentencex", "tensorboardX", "backports.zstd",
    "jaxtyping", "wadler-lindig", "altair", "jsonschema", "jsonschema-specifications",
    "referencing", "rpds-py",
)  # fmt: skip
KINDS = {
    "text": ("europarl_enfr/*", "newstest_enfr/*"),
    "ctranslate2": (),
}
# Pages need one file of vl-convert, whose wheel is 33 MB.
STAND_IN = '''"""The part of vl-convert that pages need."""

from pathlib import Path


def javascript_bundle() -> str:
    return Path(__file__).with_name("vega.js").read_text("utf-8")
'''


def default_data() -> Path:
    """Return the folder of the text: that of a pack, or data/."""
    return TEXT if TEXT.is_dir() else ROOT / "data"


def pack(kind: str, folder: Path, data: Path) -> dict[str, Any]:
    """Write a pack into a new folder; returns the megabytes of its parts.

    Raises InputError if the folder exists or the text is not in `data`.
    """
    if folder.exists():
        raise InputError(f"{folder} exists; give a new folder")
    texts = [path for pattern in KINDS[kind] for path in sorted(data.glob(pattern))]
    if KINDS[kind] and not texts:
        raise InputError(f"{data} has no europarl_enfr/; give --data")
    for name in ("jaxformer", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / "commit").write_text(describe_commit())
    wheels = folder / "wheels"
    packages = [*PACKAGES, *(["ctranslate2"] if kind == "ctranslate2" else [])]
    systems = [f"--platform=manylinux_2_{number}_x86_64" for number in GLIBC]
    systems += ["--platform=manylinux2014_x86_64", "--platform=any"]
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "-q", "--no-deps",
            "--only-binary=:all:", f"--python-version={PYTHON}",
            "--implementation=cp", *systems, f"--dest={wheels}", *packages,
        ],
        check=True,
    )  # fmt: skip
    if kind == "text":
        import vl_convert

        (wheels / "vl_convert.py").write_text(STAND_IN)
        (wheels / "vega.js").write_text(vl_convert.javascript_bundle(), "utf-8")
    for path in texts:
        target = folder / "text" / path.relative_to(data)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return {"megabytes": {part.name: size(part) for part in folder.iterdir()}}


def size(path: Path) -> float:
    """Return the megabytes of a file, or of the files in a folder."""
    files = [path, *path.rglob("*")]
    return round(sum(each.stat().st_size for each in files if each.is_file()) / 1e6, 2)


def install(folder: Path, environment: dict[str, str]) -> None:
    """Install the wheels of a pack, if this is one.

    This process and commands with the environment find them.
    """
    if not WHEELS.is_dir():
        return
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
            "--no-compile", f"--target={folder}", *WHEELS.glob("*.whl"),
        ],
        check=True,
    )  # fmt: skip
    for name in ("vl_convert.py", "vega.js"):
        if (WHEELS / name).exists():
            shutil.copy(WHEELS / name, folder)
    sys.path.insert(0, str(folder))
    known = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *([known] * bool(known))])


def find_libraries(pattern: str) -> Iterator[Path]:
    """Find libraries of CUDA's packages for Python."""
    for folder in filter(None, sys.path):
        yield from Path(folder).glob(f"nvidia/**/{pattern}")
