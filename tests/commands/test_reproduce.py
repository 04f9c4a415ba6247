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
def row(toy, monkeypatch):
    """A published row of the toy language."""
    config = str(toy.config.with_suffix(""))
    row = Row(config, "test en-de", THEIRS, ("text: theirs was spoken",))
    monkeypatch.setitem(published.ROWS, ROW, row)


@pytest.fixture
def reproduce(command, toy, row, tmp_path):
    """Reproduce that row in one workdir; returns the Answer."""
    data = f"--config.data.directory={toy.directory}"

    def run(*flags):
        common = ("--mode=reproduce", f"--row={ROW}", data)
        return command(*common, f"--workdir={tmp_path / 'runs' / 'a'}", *flags)

    return run


def test_a_part_of_the_budget_is_spent_and_said_and_more_goes_on(
    reproduce, command, tmp_path
):
    half = reproduce("--steps=50")
    budget = half.result["budget"]
    assert (budget["steps"], budget["published_steps"]) == (50, 100)
    assert budget["share_of_updates"] == 0.5
    assert budget["published_target_tokens"] == 100 * 768
    assert 0.3 < budget["share_of_target_tokens"] < 0.5  # no update is quite full
    assert budget["averaged_checkpoints"] == 2
    assert budget["updates_between_them"] == 12  # half of 25
    assert half.result["changed"] == []
    assert [each["scorer"] for each in half.result["every_bleu"]] == list(SCORERS)
    assert "spent 50 of 100 updates (50 %)" in half.err
    assert "differs: budget: 50 of 100 updates" in half.err
    assert "differs: text: theirs was spoken" in half.err
    ours = half.result["every_bleu"][-1]["bleu"]
    assert f"   31.40  {ours:6.2f}  Moses tokens, compounds split" in half.err
    assert f"    4.92  {half.result['ppl']:6.2f}  {PERPLEXITY}" in half.err

    whole = reproduce()
    assert "going on: en-de" in whole.err
    assert "step 50 of 100" in whole.err
    assert whole.result["budget"]["share_of_updates"] == 1
    assert whole.result["budget"]["target_tokens"] > 1.9 * budget["target_tokens"]
    assert "differs: budget" not in whole.err
    kept = json.loads((tmp_path / "runs" / "a" / "reproduced.json").read_text())
    assert kept == {k: v for k, v in whole.result.items() if k != "seconds"}

    less = reproduce("--steps=50")
    assert "holds a run of 100 steps" in less.complaint

    page = tmp_path / "page.html"
    listed = command(
        "--mode=reproduce", f"--workdir={tmp_path / 'runs'}", f"--output={page}"
    )
    assert listed.result["runs"] == 1
    (mine,) = (each for each in listed.result["rows"] if each["row"] == ROW)
    assert [each["value"] for each in mine["figures"]] == [31.4, 4.92]
    assert [each["ours"] for each in mine["figures"]] == [
        [kept["every_bleu"][-1]["bleu"]],
        [kept["ppl"]],
    ]
    html = page.read_text()
    shown = f"{kept['every_bleu'][-1]['bleu']:.2f}"
    assert re.search(rf'31\.40</td>\s*<td class="number">{shown}</td>', html)
    for score in kept["every_bleu"]:
        assert score["signature"] in html


def test_what_makes_it_another_experiment_is_named(reproduce):
    answer = reproduce(
        "--steps=2",
        "--config.optimizer.warmup_steps=20",
        "--config.training.log_every=1",
        "--beam_size=1",
        "--split=dev",
    )
    changes = [
        "optimizer.warmup_steps=20, the row has 40",
        "decoding.beam_size=1, the row has 2",
        "--split=dev",
    ]
    assert sorted(answer.result["changed"]) == sorted(changes)
    for change in changes:
        assert f"differs: config: {change}" in answer.err


def test_all_rows_are_listed_without_any_run(command):
    answer = command("--mode=reproduce")
    assert [row["row"] for row in answer.result["rows"]] == list(published.ROWS)
    assert answer.result["runs"] == 0
    assert "theirs  27.30  ours      -  Moses tokens, compounds split" in answer.err
    assert "32.87" in answer.err


def test_a_row_that_nobody_published_is_refused_with_the_nearest(command, tmp_path):
    answer = command(
        "--mode=reproduce", "--row=table3/A_h2", f"--workdir={tmp_path / 'a'}"
    )
    assert "'table3/A_h2'" in answer.complaint
    assert re.search("did you mean table3/A_h(1|32)[?]", answer.complaint)


def test_a_row_and_a_config_are_refused_together(command, toy, row, tmp_path):
    answer = command(
        "--mode=reproduce", f"--row={ROW}", *toy.flags, f"--workdir={tmp_path / 'a'}"
    )
    assert "leave out --config" in answer.complaint


def test_a_folder_or_a_record_that_is_none_is_refused(command, tmp_path):
    nowhere = command("--mode=reproduce", f"--workdir={tmp_path / 'none'}")
    assert "there is no folder" in nowhere.complaint
    (tmp_path / "reproduced.json").write_text('{"row": "table3/E"}')
    broken = command("--mode=reproduce", f"--workdir={tmp_path}")
    assert "reproduced.json cannot be read" in broken.complaint
    named = command("--mode=reproduce", f"--output={tmp_path / 'page.txt'}")
    assert "not called .html" in named.complaint
