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


@pytest.mark.slow
def test_a_part_of_the_budget_is_spent_and_the_rest_continues(
    command, toy, tmp_path, monkeypatch
):
    config = str(toy.config.with_suffix(""))
    row = Row(config, "test en-de", THEIRS, ["text: theirs was spoken"])
    monkeypatch.setitem(published.ROWS, ROW, row)
    workdir, page = tmp_path / "runs" / "a", tmp_path / "page.html"

    def reproduce(*flags):
        data = f"--config.data.directory={toy.directory}"
        common = ("--mode=reproduce", f"--row={ROW}", data, f"--workdir={workdir}")
        return command(*common, *flags)

    half = reproduce("--steps=50", "--config.mesh.data=8")  # no other experiment
    assert half.result["budget"] == {
        "steps": 50, "published_steps": 100, "share_of_updates": 0.5,
        "averaged_checkpoints": 2, "updates_between_them": 12,  # half of 25
    }  # fmt: skip
    assert half.result["changed"] == []
    assert [each["scorer"] for each in half.result["every_bleu"]] == list(SCORERS)
    bleu, ppl = half.result["every_bleu"][-1]["bleu"], half.result["ppl"]
    for line in (
        "differs: budget: 50 of 100 updates (50 %); checkpoints averaged: 2, 12",
        "differs: text: theirs was spoken",
        f"theirs  31.40  ours {bleu:6.2f}  Moses tokens, compounds split",
        f"theirs   4.92  ours {ppl:6.2f}  {PERPLEXITY}",
    ):
        assert line in half.err

    full = reproduce("--config.decoding.beam_size=1", "--split=dev")
    assert "step 50 of 100" in full.err
    assert "differs: budget" not in full.err
    changes = ["decoding.beam_size=1, the row has 2", "--split=dev"]
    assert full.result["changed"] == changes
    assert f"differs: config: {changes[0]}" in full.err
    kept = json.loads((workdir / "reproduced.json").read_text())
    assert kept == {k: v for k, v in full.result.items() if k != "seconds"}
    assert "holds a run of 100 steps" in reproduce("--steps=50").complaint

    flags = (f"--workdir={workdir.parent}", f"--output={page}")
    listed = command("--mode=reproduce", *flags).result
    assert (listed["runs"], listed["output"]) == (1, str(page))
    (mine,) = (each for each in listed["rows"] if each["row"] == ROW)
    bleu = kept["every_bleu"][-1]["bleu"]
    ours = [each["ours"] for each in mine["figures"]]
    assert ours == [[bleu], [kept["ppl"]]]
    html = page.read_text()
    assert re.search(rf'31\.40</td>\s*<td class="number">{bleu:.2f}</td>', html)
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
