"""Nasty values for every key and flag.

A fixed slice is run by default. `FUZZ_CASES=10000 FUZZ_SEED=1 pytest -m slow -s
tests/commands/test_fuzz.py` runs so many cases of another seed, and prints counts.
"""

import dataclasses
import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import pytest
from hypothesis import strategies as st

import jaxformer
from jaxformer.commands.flags import CLUSTER, COMMANDS, FLAGS
from jaxformer.config.settings import kind_of
from jaxformer.runs.config_files import read_config_file, sections_of
from jaxformer.system.errors import InputError
from jaxformer.system.stopping import StopRequests
from jaxformer.text.lines import normalise
from tests.commands import fuzzing

COUNT = int(os.environ.get("FUZZ_CASES", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
TEXT = "bo da fe\nni\n"
# What a command needs besides --workdir and the flag that is tried.
BASE = {
    "export": {"format": "huggingface", "output": "new"},
    "new": {"train": "text,text", "dev": "text,text", "output": "new.py"},
    "import": {"input": "run", "config": "demo"},
    "visualize": {"output": "page.html"},
    "report": {"output": "page.html"},
    "translate_corpus": {"source": "text", "output": "new"},
    "serve": {"port": "0", "max_batch": "1"},
    "reproduce": {"row": "table3/E"},
}
WRITERS = ("train", "prepare", "check")  # of the run's folder, so they get a copy


class Fuzzer:
    """A folder with a run, and the outcomes of the cases tried in it."""

    def __init__(self, command, toy, folder: Path) -> None:
        self.command, self.toy, self.folder = command, toy, folder
        self.counts, self.faults = Counter(), []
        self.kept = {path.name for path in folder.iterdir()}

    def clean(self) -> None:
        """Remove what a case wrote; put the text back."""
        for path in self.folder.iterdir():
            if path.name not in self.kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for page in Path("run").glob("*.html"):
            page.unlink()  # by default pages are written there
        Path("text").write_text(TEXT)

    def try_case(self, name: str, mode: str, *flags: str, workdir="run"):
        """Run a command, judge it, and require that it leaves the run's files alone."""
        is_writer = mode in WRITERS and workdir == "run"
        workdir = str(shutil.copytree("run", "copy")) if is_writer else workdir
        watched = Path("copy" if is_writer else "run")
        before = fuzzing.contents(watched)
        outcome, what = fuzzing.judge(
            lambda: self.command(mode, *flags, workdir=workdir, stdin=TEXT.encode()),
            partial(fuzzing.is_result, mode, flags),
        )
        lost = before.items() - fuzzing.contents(watched).items()
        if lost and not (is_writer and outcome == "answer"):
            outcome, what = "fault", f"{what} changed {min(lost)[0]}"
        self.clean()
        self.counts[outcome] += 1
        if outcome == "fault":
            self.faults.append(f"{what}: {name} {mode} {' '.join(flags)}"[:400])
        if self.counts.total() % 200 == 0:
            jax.clear_caches()  # each case has compiled programs of its own

    def report(self) -> None:
        """Print the counts; fail if there was a fault."""
        print(f"\n{dict(self.counts)}")
        assert not self.faults, "\n".join(map(ascii, sorted(self.faults)))


@pytest.fixture
def fuzzer(command, toy, trained, tmp_path, monkeypatch):
    """A fuzzer in a folder of its own."""
    shutil.copytree(trained.workdir, tmp_path / "run")
    (tmp_path / "text").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StopRequests, "check", lambda self: None)
    served = "jaxformer.serving.server.Service.run_until_stopped"
    with mock.patch(served, return_value={"requests": 0}):
        yield Fuzzer(command, toy, tmp_path)


def stops_after_an_update(stop: StopRequests) -> bool:
    """Stand for `reached`, which is called before each update."""
    return next(vars(stop).setdefault("answers", iter([False])), True)


def test_a_slow_case_and_a_wrong_answer_are_faults(monkeypatch):
    answer = SimpleNamespace(code=0, out=b"", err="")
    assert fuzzing.judge(lambda: answer, lambda _: False)[0] == "fault"
    monkeypatch.setattr(fuzzing, "LIMIT", 0.0)
    assert fuzzing.judge(lambda: answer, lambda _: True) == ("fault", "0 s")


def cases(slice_: int, share: float) -> int:
    return round(COUNT * share) or slice_


KEYS = {
    f"{section}.{field.name}": field
    for section, kind in sections_of(read_config_file("wmt_base")).items()
    for field in dataclasses.fields(kind)
}
KEY_CASES = st.sampled_from(sorted(KEYS)).flatmap(
    lambda name: st.tuples(
        st.just(name),
        fuzzing.values_of(kind_of(KEYS[name])[0], KEYS[name].metadata),
        st.sampled_from(["prepare", "prepare", "train", "translate", "evaluate"]),
    )
)


@pytest.mark.slow
def test_a_nasty_value_of_a_key_is_refused_or_works(fuzzer, monkeypatch):
    monkeypatch.setattr(StopRequests, "reached", stops_after_an_update)

    def run(case):
        name, value, mode = case
        flag = f"--config.{name}={value}"
        is_free = KEYS[name].metadata["free"]  # may change while a run trains
        if mode == "train" and not is_free and kind_of(KEYS[name])[0] is int:
            mode = "prepare"  # a large model may train for long
        steps = f"--config.training.steps={101 if is_free else 1}"
        flags = (steps, flag) if mode == "train" else (flag,)
        if mode == "prepare" or (mode == "train" and not is_free):
            fuzzer.try_case("key", mode, *fuzzer.toy.flags, *flags, workdir="fresh")
        else:
            fuzzer.try_case("key", mode, *flags)

    fuzzing.explore(KEY_CASES, cases(50, 0.55), SEED, run)
    fuzzer.report()


FLAG_CASES = st.sampled_from(
    [
        (mode, name)
        for mode, each in COMMANDS.items()
        for name in ("workdir", *(CLUSTER if mode == "train" else ()), *each.flags)
    ]
).flatmap(
    lambda pair: st.tuples(
        st.just(pair), fuzzing.values_of(FLAGS[pair[1]].kind, FLAGS[pair[1]]._asdict())
    )
)


@pytest.mark.slow
def test_a_nasty_value_of_a_flag_is_refused_or_works(fuzzer, monkeypatch):
    monkeypatch.setattr(StopRequests, "reached", stops_after_an_update)

    def run(case):
        (mode, name), value = case
        flags = {**BASE.get(mode, {}), name: value}
        workdir = flags.pop("workdir", "run")
        given = [f"--{key}={text}".removesuffix("=true") for key, text in flags.items()]
        fuzzer.try_case("flag", mode, *given, workdir=workdir)

    unconnected = mock.Mock(side_effect=ValueError("no cluster"))
    with mock.patch("jax.distributed.initialize", unconnected):
        fuzzing.explore(FLAG_CASES, cases(40, 0.35), SEED, run)
    fuzzer.report()


WORDS = st.text("SURIDO \t\u2581\x00e", max_size=6) | st.text(max_size=2)


@pytest.mark.slow
def test_nasty_phrases_are_refused_or_in_the_translation(trained):
    translator = jaxformer.Translator(trained.workdir, beam_size=2)
    counts = Counter()

    def run(phrases):
        try:
            (found, *_) = translator.translate("bo da fe", phrases=phrases)
        except InputError:
            counts["refused"] += 1
        else:
            counts["answer"] += 1
            assert all(normalise(each) in found.text for each in phrases)

    phrases = st.lists(WORDS, max_size=10)
    fuzzing.explore(phrases, cases(60, 0.1), SEED, run)
    print(f"\n{dict(counts)}")
    assert min(counts["refused"], counts["answer"]) > 5
