"""Every notebook has its pictures, and runs from its first cell to its last.

The outputs in the repository were made by nbclient in the folder notebooks/
(`NotebookClient(notebook).execute()`); stderr and times are left out, and the colours
of pictures reduced to a palette. `jupyter nbconvert --execute --inplace
notebooks/*.ipynb` makes them, too.

They run nightly. Those that train are shortened.
The runs whose outputs are kept took, on two cores shared with other work:
the_paper_line_by_line 102 s and several_devices 76 s of processor time, your_own_data
179 s, train_and_translate 185 s, before_the_transformer 112 s.
"""

import ast
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
PICTURES = {  # the fewest that each shows
    "the_paper_line_by_line": 10, "train_and_translate": 4, "your_own_data": 1,
    "several_devices": 3, "before_the_transformer": 7,
}  # fmt: skip
INSTALLED = dict.fromkeys(PICTURES, "-r requirements.txt")
INSTALLED["train_and_translate"] = '".[report]"'  # for the attention viewer
LIMIT = 300  # seconds of processor time, which a reader waits at most
LARGEST = 700_000  # bytes of a notebook
BADGE = "(https://colab.research.google.com/github/jaxformer/jaxformer/blob/main/{})"
SHORTER = {  # less text, fewer updates, the same cells; what the end must then show
    "train_and_translate": {
        "STEPS = 640": "STEPS = 20",
        "PAIRS = 30_000": "PAIRS = 3_000",
        "SENTENCES = 200": "SENTENCES = 40",
        '"training.eval_every": 320': '"data.vocab_size": 800',
    },
    "your_own_data": {
        "STEPS = 480": "STEPS = 20",
        "PAIRS = 20_000": "PAIRS = 3_000",
        '("dev", 100), ("test", 100)': '("dev", 20), ("test", 20)',
        "vocab_size=2000": "vocab_size=800",
    },
    "before_the_transformer": {
        "STEPS = 500": "STEPS = 10",
        "PAIRS = 20_000": "PAIRS = 2_000",
        "SENTENCES = 300": "SENTENCES = 12",  # the fewest with all groups of lengths
        '"encoder_layers": 3, "decoder_layers": 2': (
            '"encoder_layers": 1, "decoder_layers": 1'
        ),
        "model.to_dict(), 0.5": (
            'model.to_dict() | {"encoder_layers": 1, "decoder_layers": 1}, 0.5'
        ),
    },
}
PRINTED = {
    "train_and_translate": [r"BLEU \d+\.\d en-de \(nrefs:1", "40 sentences"],
    "your_own_data": [
        "broken.tsv, line 2: one column where two are needed",
        r"BLEU \d+\.\d en-de \(nrefs:1\|case:mixed",
    ],
    "before_the_transformer": [
        r"convolution, k = 3 +n = 9, 27: 4 13",
        r"Transformer +585,728 +\d+ +\d+\.\d +\d+ % +\d+\.\d\d",
    ],
}


class Notebook:
    """A notebook of the repository, with pieces of its code replaced."""

    def __init__(self, name, replacements=()):
        self.path = ROOT / "notebooks" / f"{name}.ipynb"
        self.notebook = nbformat.read(self.path, as_version=4)
        self.cells = self.notebook.cells
        self.code = [cell for cell in self.cells if cell.cell_type == "code"]
        for long in replacements:
            (cell,) = (cell for cell in self.code if long in cell.source)
            cell.source = cell.source.replace(long, replacements[long])

    def outputs(self):
        return [output for cell in self.code for output in cell.outputs]

    def shown(self, kind):
        data = [output.get("data", {}) for output in self.outputs()]
        return [each[kind] for each in data if kind in each]

    def printed(self):
        streams = [output.get("text", "") for output in self.outputs()]
        return "\n".join([*streams, *self.shown("text/plain")])


@pytest.fixture(params=sorted(path.stem for path in (ROOT / "notebooks").glob("*.*")))
def found(request):
    return Notebook(request.param)


def test_outputs_are_of_one_run_from_top_to_bottom_without_an_error(found):
    counts = [cell.execution_count for cell in found.code]
    assert counts == list(range(1, len(counts) + 1))
    kinds = {(each.output_type, each.get("name")) for each in found.outputs()}
    assert not any(kind == "error" or name == "stderr" for kind, name in kinds)
    assert not re.search(r"Traceback|Error\b", found.printed())
    assert len(found.shown("image/png")) >= PICTURES[found.path.stem]


def test_the_file_is_valid_and_has_no_other_marks_of_the_run(found):
    nbformat.validate(found.notebook)
    assert found.path.stat().st_size < LARGEST
    assert set(found.notebook.metadata) == {"kernelspec", "language_info"}
    assert found.notebook.metadata.language_info == {"name": "python"}
    for number, cell in enumerate(found.cells):
        assert (cell.id, cell.metadata) == (f"cell-{number}", {})
    text = re.sub(r'"image/png": "[^"]*"', "", found.path.read_text(encoding="utf-8"))
    assert not re.search(r"/(tmp|work|root|home|usr)\b", text)


def test_only_the_install_on_colab_downloads_and_only_without_a_checkout(found):
    install, *others = (cell.source for cell in found.code)
    forbidden = r"git clone|\bpip\b|wget|curl|urllib|requests"
    assert not any(re.search(forbidden, source) for source in others)
    before, after = install.split('elif not Path("configs").exists():\n')
    ast.parse(before)
    assert re.findall(r"^(\s*)([!%].*)$", after, re.M) == [
        ("    ", "!git clone -q https://github.com/jaxformer/jaxformer"),
        ("    ", f"%pip install -q {INSTALLED[found.path.stem]}"),
    ]
    assert found.code[0].outputs == []
    address = BADGE.format(found.path.relative_to(ROOT))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert address in found.cells[0].source
    assert any(address in page.read_text(encoding="utf-8") for page in pages)


def test_code_is_python_and_what_it_imports_and_mentions_exists(found):
    for cell in found.code[1:]:
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                exec(ast.unparse(node))
    prose = "\n".join(cell.source for cell in found.cells)
    prose = re.sub(r"https?://\S+", "", prose)
    for path in re.findall(r"\b(?:jaxformer|configs|launch|docs)/[\w/.]*\w", prose):
        assert (ROOT / path).exists(), path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.nightly
@pytest.mark.parametrize("name", PICTURES)
def test_it_runs_whole_in_time(name, tmp_path, monkeypatch):
    """As a reader runs it, in the folder notebooks/ of a checkout, on one device.

    Its own assertions are the test: formulas against the library's code. Time is of
    the processor: the clock runs on while others use the machine.
    """
    for folder in ("benchmarks", "configs", "jaxformer", "notebooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    found, before = Notebook(name, SHORTER.get(name, {})), os.times()
    where = {"metadata": {"path": str(tmp_path / "notebooks")}}
    NotebookClient(found.notebook, timeout=600, resources=where).execute()
    used = [now - then for now, then in zip(os.times()[2:4], before[2:4], strict=True)]
    assert sum(used) < LIMIT
    pictures = [each.shown("image/png") for each in (found, Notebook(name))]
    assert len(pictures[0]) == len(pictures[1])
    for text in PRINTED.get(name, []):
        assert re.search(text, found.printed())
    if name == "your_own_data":
        german = tmp_path / "runs" / "my_data" / "german.txt"
        assert german.read_text(encoding="utf-8").count("\n") == 20
