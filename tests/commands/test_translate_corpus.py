"""jaxformer translate_corpus: a text as a parallel corpus, whatever stops it."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest

from jaxformer.commands import translate_corpus
from jaxformer.corpus.prepared import open_prepared
from jaxformer.runs.run import open_run
from jaxformer.text import stream
from jaxformer.text.pairs import REASONS
from tests.commands.cluster import ROOT
from tests.commands.runs import config_flags, text_of

SAMPLES = ("--temperature=0.7", "--beam_size=1", "--seed=4")
BLOCK = 5  # lines


@pytest.fixture
def text(toy, tmp_path):
    """A file of 24 sentences, among them a blank one and one that is too long."""
    lines = [*toy.test, "", " ".join(toy.test), *toy.dev[:10]]
    (tmp_path / "mono.en").write_text(text_of(lines))
    return tmp_path / "mono.en"


@pytest.fixture
def make(use, tmp_path, text, monkeypatch):
    """Translate the text to a folder in small blocks, as toy words have no language."""
    monkeypatch.setattr(stream, "BLOCK_LINES", BLOCK)

    def run(*flags, output="out", source=text, **options):
        given = (
            "--no-languages",
            f"--source={source}",
            f"--output={tmp_path / output}",
        )
        return use("translate_corpus", *given, *flags, **options)

    return run


def files_of(folder):
    """The content of all files in a folder but the lock and what kills left."""
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


def lines_done(folder):
    try:
        return json.loads((folder / "report.json").read_bytes())["lines"]
    except FileNotFoundError:
        return 0


def test_lines_and_their_translations_are_those_of_translate(
    make, use, toy, text, tmp_path
):
    answer = make()
    lines = [*toy.test, *toy.dev[:10]]
    folder = tmp_path / "out"
    assert (folder / "train.en").read_text() == text_of(lines)
    plain = use("translate", stdin=text.read_bytes()).lines
    assert (folder / "train.de").read_text() == text_of(plain[:12] + plain[14:])
    dropped = dict.fromkeys(REASONS, 0) | {"empty": 1, "too_long": 1}
    assert answer.result == {
        "lines": 24, "kept": 22, "dropped": dropped,
        "direction": "en-de", "output": str(folder),
    }  # fmt: skip
    assert "22 of 24 pairs kept, dropped: 1 empty, 1 too_long" in answer.err
    report = json.loads((folder / "report.json").read_bytes())
    assert report.items() >= {"lines": 24, "of": 24, "kept": 22}.items()


def test_compressed_text_is_read_and_a_finished_text_is_left_alone(
    make, text, tmp_path
):
    packed = tmp_path / "mono.en.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    first = make(source=packed)
    before = files_of(tmp_path / "out")
    times = [path.stat().st_mtime_ns for path in (tmp_path / "out").glob("[!.]*")]
    with mock.patch.object(translate_corpus, "translate_all") as unused:
        again = make()
    assert not unused.called
    assert again.result == first.result
    assert "complete, 24 of 24 lines done" in again.err
    assert files_of(tmp_path / "out") == before
    assert [p.stat().st_mtime_ns for p in (tmp_path / "out").glob("[!.]*")] == times


def test_an_interrupted_command_continues_with_the_same_samples(make, tmp_path):
    """Seeds of samples belong to lines; a shorter batch may follow a failure."""
    (tmp_path / "out").mkdir()  # killed while the first report was written
    (tmp_path / "out" / ".report.json.partial").write_text("{")
    undisturbed = make(*SAMPLES, output="whole")
    translate, calls = translate_corpus.translate_all, []

    def interrupted(*args, **options):
        calls.append(options["first"])
        if len(calls) % 3 == 0:
            raise KeyboardInterrupt
        return translate(*args, **options)

    with mock.patch.object(translate_corpus, "translate_all", interrupted):
        answers = [make(*SAMPLES) for _ in range(3)]
    assert calls == [0, 5, 10, 10, 15, 20, 20]
    assert [answer.code for answer in answers] == [130, 130, 0]
    assert "continued, 20 of 24 lines done" in answers[2].err
    assert answers[2].result["kept"] == undisturbed.result["kept"]
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    other = make(*SAMPLES[:2], "--seed=5", output="other")
    assert other.result["lines"] == 24
    names = [tmp_path / name / "train.de" for name in ("out", "other")]
    assert names[0].read_text() != names[1].read_text()


SMALL_BLOCKS = f"""
from jaxformer.commands import translate_corpus
from jaxformer.text import stream
from jaxformer.main import run_process
stream.BLOCK_LINES = {BLOCK}
run_process()
"""


@pytest.mark.slow
def test_real_kills_change_no_byte(trained, toy, tmp_path):
    """SIGKILL after the first block, SIGTERM some blocks later."""
    lines = (toy.directory / "train.en").read_text().splitlines()[:400]
    (tmp_path / "mono").write_text(text_of(lines))
    flags = [f"--workdir={trained.workdir}", f"--source={tmp_path / 'mono'}", *SAMPLES]
    command = [sys.executable, "-c", SMALL_BLOCKS, "--mode=translate_corpus", *flags]
    options = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    options["env"] = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}

    def start(name):
        output = f"--output={tmp_path / name}"
        return subprocess.Popen([*command, "--no-languages", output], **options)

    for number in (signal.SIGKILL, signal.SIGTERM):
        before = lines_done(tmp_path / "out")
        killed = start("out")
        end = time.monotonic() + 120
        while lines_done(tmp_path / "out") < before + 4 * BLOCK:
            assert killed.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        killed.send_signal(number)
        assert killed.wait(60) == -number
        assert lines_done(tmp_path / "out") < 400
    assert [start(name).wait(180) for name in ("out", "whole")] == [0, 0]
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert (tmp_path / "out" / "train.en").read_text() == text_of(lines)


def test_scores_and_languages_drop_translations(make, use, text, tmp_path):
    found = use("translate", "--json", stdin=text.read_bytes()).lines
    means = [
        best["log_probability"] / best["tokens"]
        for line in map(json.loads, found)
        for best in line["hypotheses"]
        if best["tokens"]
    ]
    del means[12]  # of the long line
    least = sorted(means)[8]
    result = make(f"--least_log_probability={least - 1e-7}", output="a").result
    assert (result["kept"], result["dropped"]["score"]) == (14, 8)
    (tmp_path / "foreign").write_text("Старый врач должен помочь.\n")
    result = make("--languages", source=tmp_path / "foreign", output="b").result
    assert (result["kept"], result["dropped"]["language"]) == (0, 1)
    assert files_of(tmp_path / "b")["train.de"] == b""


@pytest.mark.slow
def test_the_corpus_trains_both_directions_with_a_tag_of_the_reader(
    make, command, toy, tmp_path
):
    """Back-translation: real pairs of the other direction, and synthetic sources."""
    make()
    swapped = config_flags("data", source_language="de", target_language="en")
    back = {
        "name": "back", "directory": str(tmp_path / "out"), "dev": "", "tag": ">>bt<<",
    }  # fmt: skip
    corpora = f"--config.data.corpora={json.dumps([{'name': 'real'}, back])}"
    steps = config_flags(
        "training", steps=4, save_every=2, eval_every=4, average=1, log_every=1
    )
    workdir = tmp_path / "run"
    trained = command("train", *toy.flags, *swapped, corpora, *steps, workdir=workdir)
    assert trained.result["direction"] == "de-en"
    assert "has no tag" not in trained.err
    prepared, run = open_prepared(workdir), open_run(workdir)
    first, end = prepared.bounds()["back"]
    assert end - first == 22
    source, target = (side[first] for side in prepared.train)
    assert run.tokenizer.pieces()[source[0]] == ">>bt<<"
    assert run.tokenizer.decode(target) == toy.test[0]
    line = (tmp_path / "out" / "train.de").read_text().splitlines()[0]
    assert run.tokenizer.decode(source[1:]) == line
    for mode in ("translate", "evaluate"):  # real text has no tag
        answer = command(mode, workdir=workdir, stdin=["SU"])
        assert answer.code == 0, answer.err
        assert "has no tag" not in answer.err
    (tmp_path / "tags").write_text(">>bt<<\n")
    flags = (f"--source={tmp_path / 'tags'}", f"--output={tmp_path / 'empty'}")
    empty = command("translate_corpus", "--no-languages", *flags, workdir=workdir)
    assert empty.result["dropped"]["empty"] == empty.result["lines"] == 1
    dev = toy.directory / "dev"
    forward = config_flags("data", directory=tmp_path / "out", dev=dev)
    flags = (*toy.flags, *forward, "--config.data.vocab_size=50")
    answer = command("prepare", *flags, workdir=tmp_path / "student")
    assert answer.result["direction"] == "en-de"
    assert open_prepared(tmp_path / "student").report["train"]["pairs"] == 22


def test_a_source_that_changes_meanwhile_is_named(make, monkeypatch):
    """It is read twice: to be counted, and to be translated."""
    whole = translate_corpus.read_lines
    reads = iter((whole, lambda source: list(whole(source))[:-1]))
    monkeypatch.setattr(
        translate_corpus, "read_lines", lambda source: next(reads)(source)
    )
    assert "the source had 24 lines and has another number" in make().complaint


def test_anything_else_than_the_same_command_is_refused(make, text, tmp_path):
    assert make().code == 0
    before = files_of(tmp_path / "out")
    for flags, said in (
        (["--beam_size=3"], "begun with beam_size=2, and this command has 3; repeat"),
        (["--least_log_probability=-1"], "least_log_probability=None, and this"),
        (["--languages"], "begun with languages=False, and this command has True"),
        (["--checkpoint=50"], "begun with parameters="),
        (["--dtype=bfloat16"], "begun with dtypes=['float32'], and this"),
    ):
        assert said in make(*flags).complaint
    faster = "--config.decoding.batch_tokens=100"  # and nothing else
    assert make(faster).code == 0
    text.write_text(text.read_text() + "bo\n")
    assert "was begun with source=" in make().complaint
    assert files_of(tmp_path / "out") == before
