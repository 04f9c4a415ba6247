"""The notebook runs from its first cell to its last, with less text and updates."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
SHORT = {"STEPS = 1740": "STEPS = 20", "runs/quickstart": "run"}
LITTLE = {
    "builtin_pairs=100_000": "builtin_pairs=3_000",
    "builtin_eval_pairs=500": "builtin_eval_pairs=40",
    "vocab_size=2000": "vocab_size=800",
}


def shortened(text, replacements):
    for long, short in replacements.items():
        assert long in text
        text = text.replace(long, short)
    return text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quickstart_trains_plots_translates_and_scores(tmp_path, monkeypatch):
    for folder in ("configs", "jaxformer"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    demo = tmp_path / "configs" / "demo.py"
    demo.write_text(shortened(demo.read_text(), LITTLE))
    text = (ROOT / "notebooks" / "quickstart.ipynb").read_text()
    notebook = nbformat.reads(shortened(text, SHORT), as_version=4)
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # one device, as a reader has
    NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    last = outputs[-1]["data"]["text/plain"]
    assert "'signature': 'nrefs:1" in last
    assert "'direction': 'en-de'" in last
    assert "'sentences': 40" in last
