"""The package works where it is installed, without the repository."""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHORT = (
    "--workdir=run", "--config.data.train=600", "--config.data.dev=4",
    "--config.data.test=4", "--config.data.vocab_size=400",
    "--config.training.eval_every=1000", "--config.training.save_every=2",
    "--config.decoding.beam_size=1", "--config.decoding.extra_length=4",
)  # fmt: skip


def run(cwd, *command):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_demo_trains_from_a_wheel_in_an_empty_folder(tmp_path):
    source, installed = tmp_path / "source", tmp_path / "venv"
    skipped = shutil.ignore_patterns(".*", "build", "*.egg-info", "runs", "tests")

    def ignored(folder, names):  # at the top only; jaxformer/runs is needed
        return skipped(folder, names) if Path(folder) == ROOT else ()

    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    run(source, *build, "-o", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    top = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name.partition("-")[0] for name in top} == {"jaxformer"}

    venv.create(installed, with_pip=False)
    (site,) = (installed / "lib").glob("*/site-packages")
    # The dependencies are those of this environment; only jaxformer is installed.
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    run(tmp_path, *install, site, wheel)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    empty, python = tmp_path / "empty", installed / "bin" / "python"
    (empty / "configs").mkdir(parents=True)  # the user's own
    (empty / "configs" / "__init__.py").write_text("raise ImportError")
    for program, config, steps in (
        ([site / "bin" / "jaxformer"], "demo", 2),
        (["-m", "jaxformer"], "configs/demo.py", 4),
    ):
        flags = (f"--config={config}", f"--config.training.steps={steps}", *SHORT)
        assert json.loads(run(empty, python, *program, *flags))["step"] == steps
