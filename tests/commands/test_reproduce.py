"""jaxformer reproduce: the row's config at a part of its length, theirs beside ours."""

import functools
import json
import re

import pytest

from jaxformer.evaluation import published
from jaxformer.evaluation.metrics import SCORERS
from jaxformer.evaluation.published import PERPLEXITY, Figure, Row
from tests.commands.runs import metrics

ROW = "toy/word-by-word"
THEIRS = (
    Figure(31.4, "Moses tokens, compounds split", "Somebody 2017"),
    Figure(4.92, PERPLEXITY, "Somebody 2017", "of other pieces"),
)


@pytest.mark.slow
def test_a_part_of_the_budget_is_spent_and_the_rest_continues(
    command, toy, tmp_path, monkeypatch
):
    text = toy.config.read_text().replace("steps=100", "steps=20")
    text = text.replace(
        "eval_every=50, save_every=25", "eval_every=1000, save_every=10"
    )
    (tmp_path / "short.py").write_text(text)
    config = str(tmp_path / "short")
    row = Row(config, "test en-de", THEIRS, ["text: theirs was spoken"])
    monkeypatch.setitem(published.ROWS, ROW, row)
    workdir = tmp_path / "runs" / "a"
    common = (f"--row={ROW}", f"--config.data.directory={toy.directory}")
    reproduce = functools.partial(command, "reproduce", *common, workdir=workdir)

    half = reproduce("--config.training.steps=10")
    budget = half.result["budget"]
    assert (budget["steps"], budget["published_steps"]) == (10, 20)
    assert budget["averaged_checkpoints"] == 2
    assert budget["updates_between_them"] == 5  # half of 10
    assert half.result["changed"] == []
    assert [each["scorer"] for each in half.result["every_bleu"]] == list(SCORERS)
    bleu, ppl = half.result["every_bleu"][-1]["bleu"], half.result["ppl"]
    for said in (
        "differs: budget: 10 of 20 updates (50 %)",
        "differs: text: theirs was spoken",
        f"theirs  31.40  ours {bleu:6.2f}  Moses tokens, compounds split",
        f"theirs   4.92  ours {ppl:6.2f}  {PERPLEXITY}",
    ):
        assert said in half.err

    changes = ["--beam_size=1", "--split=dev"]
    full = reproduce(*changes)
    assert "step 10 of 20" in full.err
    assert "differs: budget" not in full.err
    assert full.result["changed"] == changes
    kept = json.loads((workdir / "reproduced.json").read_text())
    assert kept == full.result
    again = reproduce("--config.training.steps=10")
    assert "holds a run of 20 steps" in again.complaint
    untrained = reproduce(*changes, "--config.optimizer.peak_learning_rate=0.005")
    assert untrained.result["changed"] == changes
    scored = reproduce(*changes, "--config.training.average=1").result
    assert scored["budget"]["averaged_checkpoints"] == 1
    assert scored["changed"] == ["training.average=1, the row has 2", *changes]
    log = workdir / "metrics.jsonl"  # as a stop during the last evaluation leaves it
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(each for each in lines if '"final"' not in each))
    reproduce(*changes)
    assert [each["step"] for each in metrics(workdir, "final")] == [20]

    page = tmp_path / "page.html"
    listed = command("reproduce", f"--output={page}", workdir=workdir.parent).result
    assert (listed["runs"], listed["output"]) == (1, str(page))
    (mine,) = (each for each in listed["rows"] if each["row"] == ROW)
    bleu = kept["every_bleu"][-1]["bleu"]
    assert [(each["value"], each["ours"]) for each in mine["figures"]] == [
        (31.4, [bleu]),
        (4.92, [kept["ppl"]]),
    ]
    html = page.read_text()
    assert re.search(rf'31\.40</td>\s*<td class="number">{bleu:.2f}</td>', html)
    assert all(score["signature"] in html for score in kept["every_bleu"])


def test_all_rows_are_listed_without_any_run(command):
    answer = command("reproduce")
    assert [row["row"] for row in answer.result["rows"]] == list(published.ROWS)
    assert answer.result["runs"] == 0
    assert "theirs  27.30  ours      -  Moses tokens, compounds split" in answer.err
    assert "32.87" in answer.err
