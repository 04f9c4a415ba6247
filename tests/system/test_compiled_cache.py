"""A compiled program on disk is used as it was written, or not at all."""

import os
import random
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from jaxformer.system import compiled_cache
from jaxformer.system.compiled_cache import remove_damaged, seal
from jaxformer.system.files import cache_folder
from tests.damage import flip_bit

PROGRAM = """
import os
import jax
from jaxformer.system import compiled_cache
compiled_cache._SHORTEST = 0.0
compiled_cache.open_cache()
print(jax.jit(lambda x: x * 3 + 1)(2), flush=True)
os._exit(0)  # as a process that is killed
"""


def test_programs_with_another_checksum_or_none_are_removed(tmp_path):
    for name in ("a-cache", "b-cache", "c-cache", "d-cache", "other"):
        (tmp_path / name).write_bytes(b"program")
    seal(tmp_path)
    (tmp_path / "new-cache").write_bytes(b"half of a")
    flip_bit(tmp_path / "b-cache", 5)
    (tmp_path / "c-cache.xxh128").write_text("")
    (tmp_path / "d-cache.xxh128").write_bytes(b"\xff")  # no UTF-8
    remove_damaged(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["a-cache", "a-cache.xxh128", "other"]


def compute(folder, **variables) -> str:
    names = {"XDG_CACHE_HOME": str(folder), "JAX_PLATFORMS": "cpu", **variables}
    names = {**os.environ, **names, "JAX_COMPILATION_CACHE_DIR": ""}
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, env=names, check=True, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_flipped_bit_is_compiled_again(tmp_path):
    """XLA would run the program, and often end by a signal."""
    folder, draw = tmp_path / "jaxformer", random.Random(0)
    assert compute(tmp_path) == "7\n"
    programs = sorted(folder.glob("*-cache"))
    assert len(programs) == len([*folder.glob("*.xxh128")]) > 0
    for program in programs:
        flip_bit(program, draw.randrange(8 * program.stat().st_size))
    damaged = [program.read_bytes() for program in programs]
    assert compute(tmp_path) == "7\n"
    assert all(p.read_bytes() not in damaged for p in programs)


def test_without_a_home_folder_every_process_compiles(monkeypatch):
    """Some users of containers have none."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError))
    with pytest.raises(FileNotFoundError, match="set HOME or XDG_CACHE_HOME"):
        cache_folder("runs")
    config = mock.Mock(jax_compilation_cache_dir=None)
    monkeypatch.setattr(compiled_cache.jax, "config", config)
    compiled_cache.open_cache()
    config.update.assert_not_called()
