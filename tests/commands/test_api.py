"""The Python API: its names, types and examples, beside the commands."""

import dataclasses
import inspect
import itertools
import logging
import pydoc
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import jaxformer
from jaxformer import InputError
from jaxformer.decoding.options import TranslateOptions

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
USES = """
from collections.abc import Iterator
from typing import assert_type

assert_type(translator("a"), str)
assert_type(translator(["a"]), list[str])
assert_type(translator(iter(["a"])), Iterator[str])
assert_type(translator.translate(("a",))[0][0].score, float)
assert_type(result.step, int)
translator(3)  # type: ignore[call-overload]
jaxformer.Translator("x", beam=3)  # type: ignore[call-arg]
jaxformer.Engine  # type: ignore[attr-defined]
raise jaxformer.InputError("x")
"""
OURS = {
    "640": "100", "[0, 3]": "[0, 1]", "The cat sleeps.": "bo da",
    "The dogs run.": "fe gi", "Die Katze schläft.": "SU RI", "Katze": "RI", "Die": "SU",
}  # fmt: skip
# Libraries are not read: that takes half a minute.
MYPY = """
[mypy]
strict = True
follow_imports = skip
[mypy-jaxformer.*]
follow_imports = silent
"""


@pytest.fixture(scope="module")
def translator(trained):
    return jaxformer.Translator(trained.workdir)


def test_names_are_public_and_help_has_them():
    assert dir(jaxformer) == sorted(jaxformer.__all__)
    assert isinstance(jaxformer.Translator, type)
    shown = pydoc.render_doc(jaxformer, renderer=pydoc.plaintext)
    assert 'translator = jaxformer.Translator("runs/demo")' in shown
    for name in {*jaxformer.__all__} - {"__version__"}:
        assert re.search(rf"^    (class )?{name}\(", shown, re.M), name
    public = [name for name in dir(jaxformer.Translator) if not name.startswith("_")]
    assert public == [
        "attention",
        "attention_of_parts",
        "score",
        "translate",
        "translate_document",
    ]


def test_all_options_are_arguments_with_the_same_defaults_and_meanings():
    given = inspect.signature(jaxformer.Translator).parameters
    for field in dataclasses.fields(TranslateOptions):
        default = given[field.name].default
        if field.name != "split_sentences" and default is not None:
            assert default == field.default
        assert field.metadata["meaning"] in inspect.getdoc(jaxformer.Translator)


def test_examples_have_types_in_an_editable_install(tmp_path):
    (tmp_path / "uses.py").write_text(EXAMPLE + USES, "utf-8")
    (tmp_path / "mypy.ini").write_text(MYPY)
    python = f"--python-executable={sys.executable}"
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", python, "uses.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_examples_run(own_run, toy, quick_check, own_logging, tmp_path, monkeypatch):
    """In the toy language, on a run that is finished."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    shutil.copytree(own_run, "runs/lstm")
    own_run.rename("runs/demo")
    end = "    return config"
    place = f"    config.data.directory = {str(toy.directory)!r}\n{end}"
    Path("demo.py").write_text(toy.config.read_text().replace(end, place))
    Path("english.txt").write_text("bo da\n")
    example, found = EXAMPLE, {}
    for shown, ours in OURS.items():
        assert shown in example
        example = example.replace(shown, ours)
    with own_logging():
        exec(example, found)
    assert found["hypotheses"][0].text == "SU RI"
    assert found["result"].step == 100
    assert Path("demo-ct2/model.bin").exists()
    assert Path("attention.html").exists()


def test_functions_return_what_commands_print(use, trained, toy, tmp_path):
    missing = {"comet": None, "comet_signature": "", "other_scores": (), "compared": ()}
    printed = use("evaluate").result | missing
    assert dataclasses.asdict(jaxformer.evaluate(trained.workdir)) == printed
    with pytest.raises(InputError, match=r"\.step; did you mean training\.steps"):
        jaxformer.train(toy.config, tmp_path / "run", overrides={"training.step": 3})


def test_logging_is_left_to_the_program(trained, own_logging, capsys):
    with own_logging():
        jaxformer.Translator(trained.workdir, checkpoint=75)("☃")
        assert logging.root.handlers == []
    assert capsys.readouterr().err == "texts without a known character, copied: 1\n"


def test_an_iterator_streams(translator, toy, monkeypatch):
    monkeypatch.setattr("jaxformer.api._BLOCK", 2)
    read = []
    endless = (read.append(text) or text for text in itertools.cycle(toy.test))
    expected = translator(toy.test[:3])
    assert [*itertools.islice(translator(endless), 3)] == expected
    assert len(read) == 4
    with pytest.raises(TypeError, match="give a list"):
        translator.translate(endless, prefixes=["SU"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "3 is no text"),
        (b"bo", "b'bo' is no text"),
        (["bo", None], "None is no text"),
    ],
)
def test_what_is_no_text_is_named(translator, given, message):
    with pytest.raises(TypeError, match=message):
        translator(given)
    with pytest.raises(TypeError, match=message):
        jaxformer.attention_view(translator, given)


def test_scores_are_those_of_lists(translator):
    with pytest.raises(TypeError, match="'bo' is one text; give a list"):
        translator.score(["bo"], "bo")


def test_threads_take_turns(translator, toy, monkeypatch):
    texts, running = [[text] * 3 for text in toy.test[:4]], threading.Lock()
    expected = [*map(translator, texts)]
    search = translator._translator._run

    def run(*args, **kwargs):
        assert running.acquire(blocking=False)
        search(*args, **kwargs)
        running.release()

    monkeypatch.setattr(translator._translator, "_run", run)
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(translator, texts)] == expected
