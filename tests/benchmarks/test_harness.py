"""What the benchmarks compute of times, and how a script begins and ends."""

import json
import os
import threading
from pathlib import Path

import pytest

from benchmarks import decode, faults, harness, load, startup, train


def test_figures_compare_rates_within_a_round(capsys):
    """The second round was slow for both, so the ratio hardly changes."""
    seconds = ((2.0, 1.0), (20.0, 10.0), (1.0, 2.0))
    rounds = [{"ours": ours, "theirs": theirs} for ours, theirs in seconds]
    found = harness.figures(rounds, {"ours": 10, "theirs": 5}, "theirs")
    alone = harness.figures([{"ours": 2.0}], {"ours": 9000}, "theirs")
    extra = {"share": "{spread:.0%}"}
    harness.print_figures({"a": found, "b": alone}, "tokens", "theirs", extra)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("| tokens/s | share | times theirs |")
    assert lines[1] == "|---|---|---|---|---|---|---|"
    assert lines[2] == "| a | ours | 2.000 | 950 % | 5.0 | 950 % | 1.00 (1.00 - 4.00) |"
    assert lines[4] == "| b | ours | 2.000 | 0 % | 4,500.0 | 0 % | - |"


def test_turns_are_taken_in_order():
    order = []
    turns = {name: (lambda name=name: order.append(name)) for name in "ab"}
    rounds = harness.take_turns(turns, 2, pause=0)
    assert order == ["a", "b", "a", "b"]
    assert [list(each) for each in rounds] == [["a", "b"]] * 2


def test_flags_are_their_defaults():
    flags = {"count": 3, "fast": False, "kind": ("x", "y"), "only": ["a"], "to": None}
    for given, values in (
        ("", [3, False, "x", ["a"], None]),
        ("--count=4 --fast --kind=y --only=b,c --to=p",
         [4, True, "y", ["b", "c"], Path("p")]),
    ):  # fmt: skip
        assert [*vars(harness.parse("", given.split(), flags)).values()] == values


@pytest.mark.parametrize(("outcome", "code"), [({}, 0), ({"holds": False}, 1)])
def test_the_last_line_is_the_outcome_and_the_code_says_what_holds(
    outcome, code, capsys
):
    assert harness.run("", lambda _: outcome, ["--quick"], repeats=(7, 2)) == code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["repeats"], bool(last["machine"]["jax"])) == (2, True)
    assert outcome.items() <= last.items()


@pytest.mark.parametrize(
    ("script", "flags", "sentence"),
    [
        (decode, "--text=a", "--workdir and --text go together"),
        (faults, "--workdir=.", "exists; name a new folder"),
        (load, "--sentences=x --url=y --workdir=z", "either --workdir or --url"),
        (startup, "--workdir=x", "of --multi30k; give both"),
        (train, "--model=tiny --only=ours,theirs", "there is no contestant theirs"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(script, flags, sentence, capsys):
    assert script.main(flags.split()) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", "AMX"),
        ("avx2 avx512f avx512_bf16", "AVX512-BF16"),
        ("avx2 avx512f", "AVX512"),
        ("avx avx2", "AVX2"),
    ],
)
def test_the_kind_of_a_processor_is_its_newest(flags, kind):
    cpuinfo = f"model name\t: avx512f\nflags\t\t: {flags}\nbugs\t: amx_bf16\n" * 2
    assert harness.kind_of(cpuinfo) == kind
    assert harness.kind_of("Features\t: asimd\n") == harness.platform.machine()


def give_up(code: int):
    """A contestant whose process ends, as one that is killed."""
    return lambda: os._exit(code)


def test_a_contestant_whose_process_ends_is_named():
    contestant = harness.Apart(give_up, 3)
    message = r"the process of give_up\(3,\) ended with code 3"
    with pytest.raises(RuntimeError, match=message):
        contestant()


def test_calls_at_once_wait_for_each_other_and_name_what_fails(capsys):
    barrier = threading.Barrier(3, timeout=10)

    def fails():
        barrier.wait()
        raise ValueError("why")

    calls = {"first": barrier.wait, "second": barrier.wait, "third": fails}
    found, failed = harness.at_once(calls)
    assert (found.keys(), failed) == ({"first", "second"}, {"third": "why"})
    assert "third failed: why" in capsys.readouterr().err
