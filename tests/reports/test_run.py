"""The data of a report, its charts, and the page made of them."""

import html
import json
import math
import re

import pytest

from jaxformer.errors import InputError
from jaxformer.evaluation import significance
from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.reports import run as report
from jaxformer.reports.alignment import lay_out
from jaxformer.reports.run_charts import MOST_POINTS, make_charts
from jaxformer.training.optimizer import inverse_square_root_schedule

from .invented import gather, invent_log, invent_run, invent_text

TEXT = invent_text()


@pytest.fixture(autouse=True)
def few_trials(monkeypatch):
    monkeypatch.setattr(significance, "RESAMPLES", 50)
    monkeypatch.setattr(significance, "TRIALS", 50)


def write(data, folder):
    """The page and the JSON beside it, as text."""
    output = folder / "page.html"
    beside = report.write(data, output)
    return output.read_text("utf-8"), beside.read_text("utf-8")


def words_of(page: str) -> str:
    """What a reader of the page's own HTML sees; without scripts and styles."""
    body = re.sub(r"(?s)<(script|style).*?</\1>", " ", page)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def values_of(chart) -> list[dict]:
    """All rows that a chart holds."""
    found = []

    def collect(value):
        if isinstance(value, dict):
            found.extend(value.get("data", {}).get("values", []))
            for each in value.values():
                collect(each)
        elif isinstance(value, list):
            for each in value:
                collect(each)

    collect(chart.to_dict())
    return found


# The data -------------------------------------------------------------------------


@pytest.mark.parametrize("warmup_steps", [1, 40, 4000])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_formula_is_the_schedule_of_the_optimiser(warmup_steps, scale):
    schedule = inverse_square_root_schedule(
        d_model=64, warmup_steps=warmup_steps, learning_rate_scale=scale
    )
    for step in (1, 2, 39, 40, 41, 4000, 100_000):
        ours = report.learning_rate(
            step, d_model=64, warmup_steps=warmup_steps, scale=scale
        )
        assert ours == pytest.approx(float(schedule(step - 1)), rel=1e-5)


def test_a_learning_rate_that_is_not_the_formula_s_is_seen():
    (right,) = gather(invent_run(), text=None)["runs"]
    assert right["learning_rate"]["largest_relative_difference"] < 1e-12
    log = invent_log(d_model=64, warmup_steps=200, scale=0.5)
    log[40]["learning_rate"] *= 1.25
    (wrong,) = gather(invent_run(metrics=log), text=None)["runs"]
    assert wrong["learning_rate"]["largest_relative_difference"] == pytest.approx(0.25)
    steps = [point["step"] for point in wrong["learning_rate"]["formula"]]
    assert steps == sorted(set(steps))
    assert {1, 200, 1000} <= set(steps)  # the start, the peak and the end


def test_scores_are_of_the_translations_and_travel_with_what_makes_them_comparable():
    run = invent_run(text=TEXT)
    data = gather(run, text=TEXT)
    ours = data["runs"][0]
    plain = corpus_scores(
        run.translated.translations,
        TEXT.references,
        source_language="en",
        target_language="de",
    )
    assert ours["scores"]["bleu"]["score"] == pytest.approx(plain.bleu)
    assert ours["scores"]["chrf"]["score"] == pytest.approx(plain.chrf)
    assert "tok:13a" in ours["scores"]["bleu"]["signature"]
    assert ours["scores"]["direction"] == data["text"]["direction"] == "en-de"
    assert ours["scores"]["case"] == "cased"
    assert sum(bucket["sentences"] for bucket in ours["by_length"]) == len(TEXT.sources)
    assert sum(bar["sentences"] for bar in ours["length_ratio"]["histogram"]) == len(
        TEXT.sources
    )
    assert data["comparison"] is None


def test_the_worst_are_worse_than_the_best_and_are_the_lines_they_say():
    run = invent_run(text=TEXT)
    (ours,) = gather(run, text=TEXT, examples=3)["runs"]
    assert len(ours["worst"]) == len(ours["best"]) == 3
    scores = significance.sentence_scores(run.translated.translations, TEXT.references)
    assert [each["chrf"] for each in ours["worst"]] == sorted(scores)[:3]
    assert [each["chrf"] for each in ours["best"]] == sorted(scores)[:-4:-1]
    for each in ours["worst"] + ours["best"]:
        place = each["line"] - 1
        assert each["source"] == TEXT.sources[place]
        assert each["reference"] == TEXT.references[place]
        assert each["translation"] == run.translated.translations[place]
        assert "</s>" not in each["alignment"]["source"] + each["alignment"]["target"]


def test_a_run_is_compared_with_the_first_one():
    runs = [
        invent_run("weak", text=TEXT, errors=0.6, training__seed=1),
        invent_run("strong", text=TEXT, errors=0.1, model__encoder_layers=6),
        invent_run("waits"),
    ]
    found = gather(*runs, text=TEXT)["comparison"]
    assert found["first"] == "weak"
    (test,) = found["tests"]
    assert test["name"] == "strong"
    assert test["bleu"]["difference"] > 10
    assert test["bleu"]["randomisation_p"] < 0.05
    assert found["config"] == [
        {"key": "model.encoder_layers", "values": [2, 6, 2]},
        {"key": "training.seed", "values": [1, 0, 0]},
    ]
    (apart,) = found["sentences"]
    gaps = [abs(each["chrf"][1] - each["chrf"][0]) for each in apart["sentences"]]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0


def test_equal_runs_have_nothing_between_them(tmp_path):
    runs = [invent_run(name, text=TEXT) for name in ("one", "other")]
    data = gather(*runs, text=TEXT)
    (test,) = data["comparison"]["tests"]
    for metric in ("bleu", "chrf"):
        assert test[metric]["difference"] == 0
        assert test[metric]["bootstrap_p"] == test[metric]["randomisation_p"] == 1
    assert data["comparison"]["config"] == []
    assert data["comparison"]["sentences"] == [{"name": "other", "sentences": []}]
    seen = words_of(write(data, tmp_path)[0])
    assert "the configs are equal" in seen
    assert "No sentence has another score" in seen


def test_folders_are_not_told(tmp_path):
    runs = [
        invent_run("one"),
        invent_run("other", data__directory="/other/secret/text"),
    ]
    data = gather(*runs, text=None)
    assert data["runs"][0]["config"]["data.directory"] == "text"
    assert data["comparison"]["config"] == []  # the same name in another place
    assert "secret" not in "".join(write(data, tmp_path))


# The page -------------------------------------------------------------------------


def test_the_page_holds_the_data_and_the_file_beside_it_the_same(tmp_path):
    data = gather(invent_run(text=TEXT), text=TEXT)
    page, beside = write(data, tmp_path)
    within = re.search(
        r'(?s)<script type="application/json" id="data">(.*?)</script>', page
    )
    assert json.loads(within[1]) == json.loads(beside) == data
    seen = words_of(page)
    scores = data["runs"][0]["scores"]
    for number in (
        f"{scores['bleu']['score']:.2f}",
        f"{scores['chrf']['score']:.2f}",
        scores["bleu"]["signature"],
        scores["chrf"]["signature"],
        "en-de, cased",
        "123,456 parameters",
        "1,000 of 1,000 updates",
        "10 too long",
        "25.0 %",
    ):
        assert number in seen
    for each in data["runs"][0]["worst"]:
        assert each["translation"] in seen


def test_two_runs_are_beside_each_other_with_what_the_tests_mean(tmp_path):
    runs = [
        invent_run("weak", text=TEXT, errors=0.5),
        invent_run("strong", text=TEXT, errors=0.1, optimizer__warmup_steps=300),
    ]
    data = gather(*runs, text=TEXT)
    seen = words_of(write(data, tmp_path)[0])
    (test,) = data["comparison"]["tests"]
    assert f"{test['bleu']['difference']:+.2f}" in seen
    for part in ("null hypothesis", "another seed", test["bleu"]["bootstrap_signature"],
                 test["bleu"]["randomisation_signature"],
                 "optimizer.warmup_steps 200 300"):  # fmt: skip
        assert part in seen
    assert "cannot be compared" not in seen


def test_pieces_and_losses_that_cannot_be_compared_are_said_not_to_be(tmp_path):
    runs = [
        invent_run("one", text=TEXT),
        invent_run("other", text=TEXT, tokenizer="f00d", training__label_smoothing=0.0),
    ]
    seen = words_of(write(gather(*runs, text=TEXT), tmp_path)[0])
    assert "These runs cut text into different pieces" in seen
    assert "These runs smooth labels differently" in seen


def test_without_examples_no_sentence_is_anywhere(tmp_path):
    runs = [
        invent_run("one", text=TEXT), invent_run("other", text=TEXT, errors=0.1)
    ]  # fmt: skip
    for several in (runs[:1], runs):
        page, beside = write(gather(*several, text=TEXT, examples=0), tmp_path)
        for sentence in (*TEXT.sources, *TEXT.references, *runs[0].translated[0]):
            if " " in sentence:  # a single word may be anything
                assert sentence not in page
                assert sentence not in beside
        assert "Worst" not in words_of(page)


def test_a_run_without_translations_and_one_without_a_log_say_so(tmp_path):
    data = gather(invent_run(), text=None)
    assert data["text"] is None
    assert data["runs"][0]["scores"] is None
    assert "no translations of it yet" in words_of(write(data, tmp_path)[0])
    empty = invent_run(metrics=[], corpus=None, batches=None, versions={})
    seen = words_of(write(gather(empty, text=None), tmp_path)[0])
    for part in ("Nothing has been logged yet", "no record of a corpus",
                 "no tokenised corpus", "0 of 1,000 updates"):  # fmt: skip
        assert part in seen
    both = gather(invent_run("one"), invent_run("other", text=TEXT), text=TEXT)
    assert "the first run has no translations yet" in words_of(write(both, tmp_path)[0])


def test_numbers_that_are_not_finite_become_null(tmp_path):
    log = invent_log(d_model=64, warmup_steps=200, scale=0.5)
    log[3] |= {"loss": None, "ppl": None, "gradient_norm": math.nan}
    log[-2]["skipped_updates"] = 3
    run = invent_run(metrics=log)
    data = gather(run, text=None)
    page, beside = write(data, tmp_path)
    assert data["runs"][0]["curves"]["train"][3]["gradient_norm"] is None
    assert json.loads(beside, parse_constant=pytest.fail) == data
    assert "NaN" not in beside
    assert "null" not in words_of(page).partition("Config")[0]


def test_skipped_updates_are_counted_or_not_recorded(tmp_path):
    log = invent_log(d_model=64, warmup_steps=200, scale=0.5)
    assert "No update was skipped" in words_of(
        write(gather(invent_run(metrics=log), text=None), tmp_path)[0]
    )
    for line in log[50:]:
        line["skipped_updates"] = 3
    data = gather(invent_run(metrics=log), text=None)
    assert "skipped_updates" in make_charts(data)
    assert "3 updates were skipped" in words_of(write(data, tmp_path)[0])
    for line in log:
        line.pop("skipped_updates", None)
    data = gather(invent_run(metrics=log), text=None)
    assert "not recorded" in words_of(write(data, tmp_path)[0])


def test_markup_in_a_sentence_is_text(tmp_path):
    text = TEXT._replace(sources=["</script><img src=x>", *TEXT.sources[1:]])
    run = invent_run("<b>bold</b>", text=text, errors=1.0)
    page, _ = write(gather(run, text=text, examples=40), tmp_path)
    assert "<img src=x>" not in page
    assert "<b>bold" not in page


def test_a_page_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    data = gather(invent_run(), text=None)
    with pytest.raises(InputError, match=r"file.*cannot be written.*--output"):
        report.write(data, tmp_path / "file" / "page.html")


# Charts ---------------------------------------------------------------------------


def test_charts_draw_what_was_logged():
    data = gather(invent_run(text=TEXT), text=TEXT)
    charts = make_charts(data)
    run = data["runs"][0]
    for name in ("loss", "nll", "ppl"):
        drawn = [(r["step"], r[name]) for r in values_of(charts[name])]
        logged = [
            (line["step"], line[name])
            for kind in ("train", "eval", "final")
            for line in run["curves"][kind]
        ]
        assert sorted(drawn) == sorted(logged)
    assert {row["kind"] for row in values_of(charts["bleu"])} == {
        "validation", "averaged",
    }  # fmt: skip
    bars = values_of(charts["bleu_by_length"])
    assert [row["bleu"] for row in bars] == [each["bleu"] for each in run["by_length"]]


def test_each_run_has_one_colour_in_all_charts():
    runs = [invent_run(name, text=TEXT) for name in ("one", "two", "three")]
    charts = make_charts(gather(*runs, text=TEXT))
    scales = []

    def collect(value):
        if isinstance(value, dict):
            if value.get("field") == "run" and "scale" in value:
                scales.append((value["scale"]["domain"], value["scale"]["range"]))
            for each in value.values():
                collect(each)
        elif isinstance(value, list):
            for each in value:
                collect(each)

    for chart in charts.values():
        collect(chart.to_dict())
    assert len(scales) > len(charts)
    assert scales == [scales[0]] * len(scales)
    assert scales[0][0] == ["one", "two", "three"]
    assert len(set(scales[0][1])) == 3


def test_a_long_log_is_thinned_in_charts_only():
    log = invent_log(d_model=64, warmup_steps=200, scale=0.5)
    line = log[0]
    log = [{**line, "step": step} for step in range(1, 3 * MOST_POINTS)]
    data = gather(invent_run(metrics=log), text=None)
    assert len(data["runs"][0]["curves"]["train"]) == len(log)
    drawn = values_of(make_charts(data)["gradient_norm"])
    assert len(drawn) <= MOST_POINTS
    assert drawn[-1]["step"] == log[-1]["step"]


def test_an_alignment_is_drawn_from_piece_to_piece():
    drawing = lay_out(
        {
            "source": ["\u2581a", "b", "\u2581ccc"],
            "target": ["\u2581x", "\u2581yy"],
            "links": [[0, 0], [2, 1]],
        }
    )
    source, target = drawing["source"], drawing["target"]
    assert [piece["text"] for piece in source] == ["a", "b", "ccc"]
    ends = [piece["x"] + piece["width"] for piece in source]
    gaps = [later["x"] - end for later, end in zip(source[1:], ends, strict=False)]
    assert 0 < gaps[0] < gaps[1]  # within a word, between words
    for link, (s, t) in zip(drawing["links"], [(0, 0), (2, 1)], strict=True):
        assert source[s]["x"] < link["from"] < source[s]["x"] + source[s]["width"]
        assert target[t]["x"] < link["to"] < target[t]["x"] + target[t]["width"]
    middles = [
        (row[0]["x"] + row[-1]["x"] + row[-1]["width"]) / 2 for row in (source, target)
    ]
    assert middles[0] == pytest.approx(middles[1], abs=0.2)
    empty = lay_out({"source": ["\u2581a"], "target": [], "links": []})
    assert (empty["target"], empty["links"]) == ([], [])
