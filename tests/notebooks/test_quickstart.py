"""The notebook runs from its first cell to its last, with fewer updates."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
SHORT = {"STEPS = 1740": "STEPS = 20", "runs/quickstart": "run"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quickstart_trains_plots_translates_and_scores(tmp_path, monkeypatch):
    for folder in ("configs", "jaxformer"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    for cell in notebook.cells:
        for long, short in SHORT.items():
            cell.source = cell.source.replace(long, short)
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # one device, as a reader has
    NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    last = outputs[-1]["data"]["text/plain"]
    assert "'signature': 'nrefs:1" in last
    assert "'direction': 'en-de'" in last
    assert "'sentences': 500" in last
