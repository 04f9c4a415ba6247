"""Nasty command lines, and how each is judged.

A case is run in this process. Its outcome is a right answer, or one line and exit code
2 with the run folder as it was, within the time limit; all else is a fault.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jaxformer.text.lines import read_lines

LIMIT = 20.0  # seconds of a case

INTEGERS = ["0", "-1", "-0", "+1", "2", "3", "7", "1.0", "1e3", "1_0", "0x10", "nan",
            "inf", "None", "True", "\u0661", "999999999"]  # fmt: skip
INTEGERS += [str(2**bits + more) for bits in (31, 32, 63, 70) for more in (-1, 0)]
NUMBERS = ["0", "-0.0", "-1", "0.5", "1", "1.5", "2", "0.99999999", "nan", "-nan",
           "inf", "-inf", "1e400", "1e-400", "1e-45", "1e-38", "3.5e38", "1e9", "None",
           "x", "0x1p3", "1,5", "\u00bd"]  # fmt: skip
TEXTS = ["", " ", "x", "a\nb", "é", "x" * 300, "x" * 5000, "nope/x", ".", "..", "%s",
         "{}", "-1", "--x", "$HOME", "\udcff", "💥", "True", "None", "train", "dev",
         "en", "*.txt", "[", "(", "a,b,,c", "builtin:x", "\u202e", "1", "0", "latest",
         "best", "average:0", "average:9", "C:\\x", "run", "text", "page.html",
         "x.svg", "run/config.json"]  # fmt: skip


def values_of(kind: type, rule: dict[str, Any]) -> st.SearchStrategy[str]:
    """Texts for a key or a flag: nasty ones, those at its bounds, and random ones."""
    near = [rule.get(key) for key in ("least", "above", "most", "below")]
    near = [bound for bound in near if bound is not None]
    if kind is bool:
        return st.sampled_from(["true", "False", "yes", "", *NUMBERS, *TEXTS])
    if kind is int:
        edges = [str(bound + d) for bound in near for d in (-1, 0, 1)]
        drawn = st.integers().map(str)
        return st.sampled_from([*edges, *INTEGERS, "", "x", "9" * 5000]) | drawn
    if kind is float:
        edges = [repr(bound * f) for bound in near for f in (0.999, 1.0, 1.001)]
        drawn = st.floats().map(repr)
        return st.sampled_from([*edges, *NUMBERS, "", "9" * 500]) | drawn
    letters = st.characters(exclude_characters="\0/")
    choices = [*rule.get("choices", ())]
    listed = [*TEXTS, *choices, *(choice[1:] for choice in choices)]
    return st.sampled_from(listed) | st.text(letters, max_size=20)


def explore(cases: st.SearchStrategy, count: int, number: int, run: Callable) -> None:
    """Call `run` with `count` cases, the same ones for the same `number`."""

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases)
    def each(case: Any) -> None:
        run(case)

    each()


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file below, by path, but of a lock."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {str(path): path.lstat() for path in files if path.name != ".lock"}
    return {name: (each.st_size, each.st_mtime_ns) for name, each in found.items()}


def judge(run: Callable[[], Any], is_right: Callable[[Any], bool]) -> tuple[str, str]:
    """Run a case; return "answer", "refused" or "fault", and what the fault is."""
    start = time.monotonic()
    try:
        answer = run()
        right = answer.code != 0 or is_right(answer)
    except Exception as error:
        return "fault", f"{type(error).__name__}: {error}"[:200]
    if (seconds := time.monotonic() - start) > LIMIT:
        return "fault", f"{seconds:.0f} s"
    *_, last = ["", *answer.err.splitlines()]
    if "Traceback" in answer.err:
        return "fault", "a traceback on stderr"
    if answer.code == 2:
        is_line = last.startswith("jaxformer: ") and not answer.out
        return ("refused", "") if is_line else ("fault", f"no line: {last[:100]}")
    if answer.code != 0:
        return "fault", f"exit code {answer.code}"
    return ("answer", "") if right else ("fault", f"wrong: {answer.out[:100]!r}")


def is_result(mode: str, flags: Sequence[str], answer: Any) -> bool:
    """Whether a command wrote JSON without NaN, or a line for each of its source.

    Standard input is as the file `text`.
    """
    *written, _ = answer.out.decode().split("\n")
    if mode == "translate":
        given = dict(flag.partition("=")[::2] for flag in flags)
        if output := given.get("--output"):
            *written, _ = Path(output).read_text("utf-8").split("\n")
        source = Path(given.get("--source") or "text")
        return len(written) == sum(1 for _ in read_lines(source))
    if mode == "align" or not written:
        return bool(written) or mode == "serve"
    last = written[-1]
    return isinstance(json.loads(last), dict) and "NaN" not in last
