"""Every notebook has its pictures, and runs from its first cell to its last.

The outputs in the repository were made by nbclient in the folder notebooks/
(`NotebookClient(notebook).execute()`); stderr and times are left out, and the colours
of pictures reduced to a palette. `jupyter nbconvert --execute --inplace
notebooks/*.ipynb` makes them, too.

Here what trains runs shortened. Processor time of the runs whose outputs are kept, on
two cores shared with other work: the_paper_line_by_line 102 s, several_devices 76 s,
your_own_data 333 s, train_and_translate 180 s for its last 160 of 640 updates and all
that follows.
"""

import ast
import base64
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
PICTURES = {  # the fewest that each shows
    "the_paper_line_by_line": 10,
    "train_and_translate": 4,
    "your_own_data": 1,
    "several_devices": 3,
}
INSTALLED = dict.fromkeys(PICTURES, "-r requirements.txt")
INSTALLED["train_and_translate"] = '".[report]"'  # for the attention viewer
LIMIT = 300  # seconds of processor time, which a reader waits at most
LARGEST = 700_000  # bytes of a notebook
BADGE = "https://colab.research.google.com/github/jaxformer/jaxformer/blob/main"

# What trains is shortened: less text, fewer updates, the same cells.
SHORTER = {
    "train_and_translate": {
        "STEPS = 640": "STEPS = 20",
        "PAIRS = 30_000": "PAIRS = 3_000",
        "SENTENCES = 200": "SENTENCES = 40",
        '"--config.training.eval_every=320"': '"--config.data.vocab_size=800"',
    },
    "your_own_data": {
        "STEPS = 480": "STEPS = 20",
        "PAIRS = 20_000": "PAIRS = 3_000",
        '("dev", 100), ("test", 100)': '("dev", 20), ("test", 20)',
        "vocab_size=2000": "vocab_size=800",
    },
}


def path_of(name):
    return ROOT / "notebooks" / f"{name}.ipynb"


def read(name, replacements=None):
    """The notebook, with pieces of its code replaced; each has to be in one cell."""
    notebook = nbformat.read(path_of(name), as_version=4)
    for long, short in (replacements or {}).items():
        cells = [cell for cell in code_of(notebook) if long in cell.source]
        assert len(cells) == 1, f"{long} is in {len(cells)} cells"
        cells[0].source = cells[0].source.replace(long, short)
    return notebook


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(notebook):
    return [output for cell in code_of(notebook) for output in cell.outputs]


def pictures_of(notebook):
    return [
        base64.b64decode(output.data["image/png"])
        for output in outputs_of(notebook)
        if "image/png" in output.get("data", {})
    ]


def printed_by(notebook):
    """All that was printed or shown as text."""
    return "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for output in outputs_of(notebook)
    )


# --- as they are in the repository ---------------------------------------------------


def test_these_are_all_notebooks():
    assert {path.stem for path in (ROOT / "notebooks").glob("*.*")} == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_is_valid_and_has_no_marks_of_a_run_but_its_outputs(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert path_of(name).stat().st_size < LARGEST
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}
    assert [cell.id for cell in notebook.cells] == [
        f"cell-{number}" for number in range(len(notebook.cells))
    ]
    assert not any(cell.metadata for cell in notebook.cells)


@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_was_run_once_from_top_to_bottom_without_an_error(name):
    notebook = read(name)
    counts = [cell.execution_count for cell in code_of(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    for output in outputs_of(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
    assert not re.search(r"Traceback|Error\b", printed_by(notebook))


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_left_in(name):
    pictures = pictures_of(read(name))
    assert len(pictures) >= PICTURES[name]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)


@pytest.mark.parametrize("name", PICTURES)
def test_every_figure_has_a_title_and_words_after_it(name):
    cells = read(name).cells
    drawn = [
        number
        for number, cell in enumerate(cells)
        if re.search(r"plt\.show\(\)|^Image\(", cell.source, re.M)
    ]
    assert len(drawn) >= PICTURES[name]
    for number in drawn:
        titled = r"title\(|title=|show_matrix\(|view\.png\("  # the viewer's has one
        assert re.search(titled, cells[number].source)
        following = cells[number + 1]
        assert following.cell_type == "markdown"
        assert len(following.source.split()) > 8


@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_names_no_folder_of_the_machine_it_ran_on(name):
    text = path_of(name).read_text(encoding="utf-8")
    images = re.compile(r'"image/png": "[^"]*"')
    assert not re.search(r"/(tmp|work|root|home|usr)\b", images.sub("", text))


@pytest.mark.parametrize("name", PICTURES)
def test_only_the_install_on_colab_downloads_and_only_without_a_checkout(name):
    install, *others = (cell.source for cell in code_of(read(name)))
    for source in others:
        ast.parse(source)  # plain Python, no magic
        assert not re.search(r"git clone|\bpip\b|wget|curl|urllib|requests", source)
    before, after = install.split('elif not Path("configs").exists():\n')
    ast.parse(before)
    downloads = re.findall(r"^(\s*)([!%].*)$", after, re.M)
    assert downloads == [
        ("    ", "!git clone -q https://github.com/jaxformer/jaxformer"),
        ("    ", f"%pip install -q {INSTALLED[name]}"),
    ]
    assert code_of(read(name))[0].outputs == []


@pytest.mark.parametrize("name", PICTURES)
def test_the_readme_and_the_notebook_itself_open_it_in_colab(name):
    address = f"({BADGE}/notebooks/{name}.ipynb)"
    assert address in (ROOT / "README.md").read_text(encoding="utf-8")
    assert address in read(name).cells[0].source


# --- run as a reader does ------------------------------------------------------------


def run(notebook, folder, monkeypatch):
    """Execute it in the folder notebooks/ of a checkout; returns seconds of processor.

    Not of the clock, which runs on while others use the machine.
    """
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # one device, as a reader has
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    before = os.times()
    NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(folder)}}
    ).execute()
    after = os.times()  # of processes that have ended, the notebook's among them
    return (
        after.children_user
        + after.children_system
        - before.children_user
        - before.children_system
    )


@pytest.fixture
def checkout(tmp_path):
    """A copy, for what training writes; returns its folder notebooks/."""
    for folder in ("configs", "jaxformer", "notebooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path / "notebooks"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in PICTURES if name not in SHORTER])
def test_a_notebook_that_trains_nothing_runs_whole_in_time(name, monkeypatch):
    """Its own assertions are the test: formulas against the library's code."""
    notebook = read(name)
    shown = len(pictures_of(notebook))
    assert 10 < run(notebook, ROOT / "notebooks", monkeypatch) < LIMIT
    assert len(pictures_of(notebook)) == shown


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_train_and_translate_runs_with_less_text(checkout, monkeypatch):
    name = "train_and_translate"
    notebook = read(name, SHORTER[name])
    assert run(notebook, checkout, monkeypatch) < LIMIT
    assert len(pictures_of(notebook)) == len(pictures_of(read(name)))
    last = outputs_of(notebook)[-1].data["text/plain"]
    assert "'signature': 'nrefs:1" in last
    assert "'direction': 'en-de'" in last
    assert "'sentences': 40" in last


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_your_own_data_runs_with_less_text(checkout, monkeypatch):
    name = "your_own_data"
    notebook = read(name, SHORTER[name])
    assert run(notebook, checkout, monkeypatch) < LIMIT
    assert len(pictures_of(notebook)) == len(pictures_of(read(name)))
    german = checkout.parent / "runs" / "my_data" / "german.txt"
    assert german.read_text(encoding="utf-8").count("\n") == 20
    printed = printed_by(notebook)
    assert "broken.tsv, line 2: one column where two are needed" in printed
    assert re.search(r"BLEU \d+\.\d en-de \(nrefs:1\|case:mixed", printed)
