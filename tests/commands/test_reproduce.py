"""--mode=reproduce: the row's config at a part of its length, theirs beside ours."""

import json
import re

import pytest

from jaxformer import published
from jaxformer.evaluation.metrics import SCORERS
from jaxformer.published import PERPLEXITY, Figure, Row

ROW = "toy/word-by-word"
THEIRS = (
    Figure(31.4, "Moses tokens, compounds split", "Somebody 2017"),
    Figure(4.92, PERPLEXITY, "Somebody 2017", "of other pieces"),
)


@pytest.fixture
def reproduce(command, toy, tmp_path, monkeypatch):
    """Reproduce a row of the toy language in one workdir; returns the Answer."""
    config = str(toy.config.with_suffix(""))
    row = Row(config, "test en-de", THEIRS, ("text: theirs was spoken",))
    monkeypatch.setitem(published.ROWS, ROW, row)
    data = f"--config.data.directory={toy.directory}"

    def run(*flags):
        common = ("--mode=reproduce", f"--row={ROW}", data)
        return command(*common, f"--workdir={tmp_path / 'runs' / 'a'}", *flags)

    return run


@pytest.mark.slow
def test_a_part_of_the_budget_is_spent_and_the_rest_continues(
    reproduce, command, tmp_path
):
    half = reproduce("--steps=50")
    budget = half.result["budget"]
    assert (budget["steps"], budget["published_steps"]) == (50, 100)
    assert budget["averaged_checkpoints"] == 2
    assert budget["updates_between_them"] == 12  # half of 25
    assert half.result["changed"] == []
    assert [each["scorer"] for each in half.result["every_bleu"]] == list(SCORERS)
    assert "differs: budget: 50 of 100 updates (50 %)" in half.err
    assert "differs: text: theirs was spoken" in half.err
    ours = half.result["every_bleu"][-1]["bleu"]
    assert f"theirs  31.40  ours {ours:6.2f}  Moses tokens, compounds split" in half.err
    ours = half.result["ppl"]
    assert f"theirs   4.92  ours {ours:6.2f}  {PERPLEXITY}" in half.err

    full = reproduce("--beam_size=1", "--split=dev")
    assert "step 50 of 100" in full.err
    assert full.result["budget"]["share_of_updates"] == 1
    assert "differs: budget" not in full.err
    changes = ["--beam_size=1", "--split=dev"]
    assert full.result["changed"] == changes
    assert f"differs: config: {changes[0]}" in full.err
    kept = json.loads((tmp_path / "runs" / "a" / "reproduced.json").read_text())
    assert kept == {k: v for k, v in full.result.items() if k != "seconds"}
    assert "holds a run of 100 steps" in reproduce("--steps=50").complaint

    page = tmp_path / "page.html"
    listed = command(
        "--mode=reproduce", f"--workdir={tmp_path / 'runs'}", f"--output={page}"
    ).result
    assert (listed["runs"], listed["output"]) == (1, str(page))
    (mine,) = (each for each in listed["rows"] if each["row"] == ROW)
    assert [(each["value"], each["ours"]) for each in mine["figures"]] == [
        (31.4, [kept["every_bleu"][-1]["bleu"]]),
        (4.92, [kept["ppl"]]),
    ]
    shown = f"{kept['every_bleu'][-1]['bleu']:.2f}"
    html = page.read_text()
    assert re.search(rf'31\.40</td>\s*<td class="number">{shown}</td>', html)
    assert all(score["signature"] in html for score in kept["every_bleu"])


def test_all_rows_are_listed_without_any_run(command):
    answer = command("--mode=reproduce")
    assert [row["row"] for row in answer.result["rows"]] == list(published.ROWS)
    assert answer.result["runs"] == 0
    assert "theirs  27.30  ours      -  Moses tokens, compounds split" in answer.err
    assert "32.87" in answer.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--row=table3/A_h2", "--workdir={0}"], r"did you mean table3/A_h(1|32)\?"),
        (["--row=table3/E", "--config=x.py", "--workdir={0}"], "leave out --config"),
        (["--workdir={0}/none"], "there is no folder"),
        (["--workdir={0}"], r"reproduced\.json cannot be read"),
        (["--output={0}/page.txt"], r"does not end in \.html"),
    ],
)
def test_bad_input_is_one_line(command, tmp_path, flags, message):
    (tmp_path / "reproduced.json").write_text('{"row": "table3/E"}')
    flags = [flag.format(tmp_path) for flag in flags]
    assert re.search(message, command("--mode=reproduce", *flags).complaint)
