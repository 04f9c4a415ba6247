"""Runs of several corpora: weights, several validation texts, reports."""

import json
from dataclasses import replace

import numpy as np
import pytest

from jaxformer import Translator
from jaxformer.corpus.pipeline import examples_of, updates
from jaxformer.corpus.prepared import open_prepared
from jaxformer.decoding.options import TranslateRequest
from jaxformer.runs.run import open_run, plan_training, warn_of_plan
from jaxformer.runs.texts import of_tags
from jaxformer.system.errors import InputError
from jaxformer.text.sources import read_parts
from tests.commands.conftest import Toy
from tests.commands.runs import config_flags, metrics, pair_flags, text_of

SHORT = config_flags(
    "training", steps=10, save_every=5, eval_every=10, keep=2, best_by="mean/nll"
)


@pytest.fixture(scope="module")
def mixed_flags(toy, tmp_path_factory):
    """The toy's text and, of weight 2.5, a small one of long sentences."""
    folder = tmp_path_factory.mktemp("long")
    lines = (toy.directory / "train.en").read_text().splitlines()
    long = [" ".join(lines[i : i + 3]) for i in range(0, 300, 3)]
    for split, part in {"train": long[10:], "dev": long[:10]}.items():
        (folder / f"{split}.en").write_text(text_of(part))
        (folder / f"{split}.de").write_text(text_of(map(Toy.translate, part)))
    corpora = [
        {"name": "short", "weight": 0.5},
        {"name": "long", "weight": 2.5, "directory": str(folder)},
    ]
    return (*toy.flags, f"--config.data.corpora={json.dumps(corpora)}")


@pytest.fixture(scope="module")
def mixed(command, mixed_flags, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("mixed") / "run"
    return workdir, command("train", *mixed_flags, *SHORT, workdir=workdir)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens_per_microbatch": 2 / 3}, "choose another training.tokens_per_micro"),
        ({"steps": 1e6}, "and fewer updates suit it, see docs/model_size.md"),
    ],
)
def test_odd_sizes_of_updates_and_very_many_epochs_are_named(
    mixed, caplog, changes, said
):
    """The changes are factors of the size of an update and of the number of updates."""
    workdir, _ = mixed
    prepared, run = open_prepared(workdir), open_run(workdir)
    training = run.config.training
    whole = {
        "tokens_per_microbatch": training.tokens_per_update,
        "steps": training.steps,
    }
    changes = {key: int(whole[key] * factor) for key, factor in changes.items()}
    training = replace(training, **changes)
    odd = run._replace(config=replace(run.config, training=training))
    for each, warns in ((run, False), (odd, True)):
        warn_of_plan(each, plan_training(each, prepared))
        assert (said in caplog.text) == warns


def test_an_epoch_has_each_corpus_by_its_weight(mixed):
    workdir, _ = mixed
    prepared, run = open_prepared(workdir), open_run(workdir)
    corpora = prepared.report["corpora"]
    assert corpora["long"]["pairs"] == 90
    assert corpora["short"]["pairs"] > 2000
    short = corpora["short"]["kept"]
    examples = plan_training(run, prepared).epoch(seed=0, epoch=3).examples
    assert (examples >= short).sum() == round(2.5 * corpora["long"]["kept"])
    assert (examples < short).sum() == round(0.5 * short)


@pytest.mark.parametrize("weights", [(0.1, 1), (3, 0)])
def test_a_temperature_keeps_the_length_of_an_epoch(mixed, weights):
    """Shares are those of n^(1/T) pairs, times the given weights."""
    data = open_run(mixed[0]).config.data
    corpora = [
        {**corpus, "weight": weight}
        for corpus, weight in zip(data.corpora, weights, strict=True)
    ]
    data = replace(data, corpora=corpora, temperature=5.0)
    sizes = {"short": 1_000_000, "long": 10_000}
    found = data.weights(sizes, 0)
    pairs = {name: found[name] * size for name, size in sizes.items()}
    assert sum(pairs.values()) == pytest.approx(weights @ np.array([*sizes.values()]))
    share = weights[1] * 10_000**0.2 / (weights[0] * 1_000_000**0.2)
    assert pairs["long"] / pairs["short"] == pytest.approx(share)


def test_the_test_text_of_a_corpus_may_change_and_its_folder_must_exist(
    mixed, mixed_flags, command
):
    corpora = json.loads(mixed_flags[-1].partition("=")[2])
    corpora[1]["test"] = "dev"
    flag = f"--config.data.corpora={json.dumps(corpora)}"
    again = command("prepare", *mixed_flags[:-1], flag, workdir=mixed[0])
    assert "as it was prepared" in again.err
    corpora[1]["directory"] = "/nowhere"
    flag = f"--config.data.corpora={json.dumps(corpora)}"
    refused = command("prepare", *mixed_flags[:-1], flag, workdir=mixed[0])
    assert "cannot be compared (there is no /nowhere/train.en" in refused.complaint


def test_files_without_a_validation_text_have_none(mixed):
    """The inherited `dev` is a key of other kinds of text."""
    data = open_run(mixed[0]).config.data
    corpora = [data.corpora[0], {"name": "files", "corpus": "files"}]
    assert [*replace(data, corpora=corpora).dev_texts] == ["short"]


def test_a_text_of_several_corpora_is_one_text(mixed):
    data = open_run(mixed[0]).config.data
    corpora = [{"name": name} for name in ("a", "b", "c")]
    corpora[2]["test"] = "dev"
    found = replace(data, corpora=tuple(corpora)).texts
    assert {*found} >= {"dev a", "test a", "test c"}
    assert not {"dev b", "test b"} & {*found}


def test_a_corpus_may_be_for_validation_and_tests_alone(mixed):
    """And messages name the corpus; the direction of the run has those of all."""
    data = open_run(mixed[0]).config.data
    other = {"name": "other", "train": "", "target_language": "fr", "dev": "dev"}
    found = replace(data, corpora=[data.corpora[0], {**other, "test": ""}])
    assert [*found.training_texts] == ["short"]
    assert [*found.dev_texts] == ["short", "other"]
    assert found.direction == "en-de, en-fr"
    with pytest.raises(InputError, match=r"test split of corpus other is missing: set"):
        read_parts(found.parts["other"].data, "test")
    with pytest.raises(InputError, match=r"raise one of a corpus with a text data\.tr"):
        replace(data, corpora=[other])


def test_weights_change_at_an_update(command, toy, mixed_flags, tmp_path):
    """From update 7 on the long text alone; epochs of both stages are in full."""
    corpora = json.loads(mixed_flags[-1].partition("=")[2])
    corpora[0]["weight"] = [[0, 1], [7, 0]]
    corpora[1]["weight"] = [[0, 0], [7, 1]]
    flag = f"--config.data.corpora={json.dumps(corpora)}"
    command("prepare", *toy.flags, flag, workdir=tmp_path)
    run, prepared = open_run(tmp_path), open_prepared(tmp_path)
    plan, short = plan_training(run, prepared), prepared.sizes()["short"]
    by_update = [examples_of(plan, 0, update) for update in range(20)]
    assert max(map(max, by_update[:7])) < short <= min(map(min, by_update[7:]))
    per_epoch = plan.later[0][1].updates_per_epoch
    assert plan.epochs(7) == 7 / plan.updates_per_epoch
    assert plan.epochs(7 + 2 * per_epoch) == plan.epochs(7) + 2
    epoch = np.concatenate(by_update[7 : 7 + per_epoch])
    assert sorted(epoch) == [*range(short, len(prepared.train.source))]
    batches = updates([prepared.train], plan, seed=0, start=5, executor="python")
    for number, update in zip(range(5, 12), batches, strict=False):
        tokens = sum((batch.source_segments > 0).sum() for batch in update)
        assert tokens == prepared.train.source.lengths[by_update[number]].sum()


def test_each_validation_text_is_scored_by_name_and_their_mean_decides(mixed):
    workdir, answer = mixed
    result = answer.result
    for line in (*metrics(workdir, "eval"), result):
        both = line["short/nll"], line["long/nll"]
        assert line["nll"] == both[0] != both[1]
        assert line["mean/nll"] == pytest.approx(sum(both) / 2)
        assert {"long/bleu", "long/chrf", "mean/bleu", "mean/chrf"} <= line.keys()
    assert "validation long: nll" in answer.err


def test_scores_are_those_of_evaluate(mixed, command):
    """NAME/SPLIT is a split of the text NAME."""
    workdir, answer = mixed
    found = {
        split: command("evaluate", f"--split={split}", workdir=workdir).result["nll"]
        for split in ("dev", "short/dev", "long/dev")
    }
    assert found["dev"] == found["short/dev"] == answer.result["short/nll"]
    assert found["long/dev"] == answer.result["long/nll"]
    refused = command("evaluate", "--split=lang/dev", workdir=workdir)
    assert refused.complaint == "data.corpora has no corpus lang; did you mean long?"


@pytest.mark.usefixtures("quick_check")
def test_a_report_and_a_check_know_the_corpora(mixed, command, tmp_path):
    workdir, _ = mixed
    page = tmp_path / "page.html"
    flags = ("--split=long/dev", f"--output={page}")
    assert command("report", *flags, workdir=workdir).result["sentences"] == 10
    assert str(workdir.parent) not in page.read_text()
    assert "BLEU of the validation text: en-de, cased" in page.read_text()
    answer = command("check", workdir=workdir)
    kept = open_prepared(workdir).sizes()
    said = f"{round(2.5 * kept['long']):,} pairs an epoch of long, {kept['long']} x 2.5"
    assert said in answer.err
    positions = answer.result["positions_per_update"]["target"]
    assert 0.5 * positions < answer.result["tokens_per_update"] <= positions


def test_a_text_that_two_corpora_share_is_scored_under_the_first(mixed):
    data = open_run(mixed[0]).config.data
    short, long = data.corpora
    third = {**long, "name": "third"}
    for corpora in ([short, long, third], [long, short, third]):
        texts = replace(data, corpora=tuple(corpora)).dev_texts
        assert [*texts] == [each["name"] for each in corpora[:2]]


@pytest.fixture(scope="module")
def two_targets(command, toy, tmp_path_factory):
    """One model that translates or copies, as the tag says."""
    workdir = tmp_path_factory.mktemp("tagged") / "run"
    corpora = [
        {"name": "translate", "tag": ">>de<<"},
        {"name": "copy", "tag": ">>en<<", "target_language": "en"},
    ]
    flag = f"--config.data.corpora={json.dumps(corpora)}"
    steps = config_flags("training", steps=150, save_every=25, eval_every=1000)
    return workdir, command("train", *toy.flags, flag, *steps, workdir=workdir)


def test_a_tag_is_one_piece_and_begins_each_source(two_targets):
    workdir, _ = two_targets
    prepared, run = open_prepared(workdir), open_run(workdir)
    pieces, bounds = run.tokenizer.pieces(), prepared.bounds()
    source, target = prepared.train
    for name, tag in {"translate": ">>de<<", "copy": ">>en<<"}.items():
        first = bounds[name][0]
        assert pieces[source[first][0]] == tag
        assert pieces.index(tag) not in [*source[first][1:], *target[first]]
    copied = bounds["copy"][0]
    np.testing.assert_array_equal(source[0][1:], target[copied])


def test_targets_are_chosen_by_flag_by_line_and_by_split(
    two_targets, command, toy, tmp_path
):
    """A blank line stays blank, and no link is to a tag."""
    workdir, answer = two_targets
    flagged = command(
        "translate", "--tag=>>de<<", workdir=workdir, stdin=["", *toy.dev]
    )
    copies = command("translate", "--tag=>>en<<", workdir=workdir, stdin=toy.dev).lines
    lines = [f">>de<< {line}" for line in toy.dev] + [f">>en<<{toy.dev[0]}"]
    tagged = command("translate", "--tag=>>en<<", workdir=workdir, stdin=lines)
    assert flagged.lines == ["", *tagged.lines[:-1]]
    assert tagged.lines[-1] == copies[0] != tagged.lines[0]
    for name, direction in {"translate": "en-de", "copy": "en-en"}.items():
        found = command("evaluate", f"--split={name}/dev", workdir=workdir).result
        assert found["direction"] == direction
        assert found["bleu"] == answer.result[f"{name}/bleu"] > 60
    page, blank = f"--output={tmp_path / 'page.html'}", ["", toy.dev[0], ""]
    for flags in [], pair_flags(tmp_path, zip(blank, blank, strict=True)):
        flags = [page, "--tag=>>en<<", *flags]
        shown = command("visualize", *flags, workdir=workdir, stdin=blank)
        assert shown.result["sentences"] == 1
    flags = pair_flags(tmp_path, zip(toy.dev, toy.dev, strict=True))
    links = command("align", "--tag=>>en<<", *flags, workdir=workdir).lines
    for line, link in zip(toy.dev, links, strict=True):
        linked = {int(each.partition("-")[2]) for each in link.split()}
        assert linked == {*range(len(line.split()))}
    for choice in ("--tag=>>en<<", "--split=copy/test"):
        copied = command("evaluate", choice, *flags, workdir=workdir).result
        assert copied["nll"] == pytest.approx(answer.result["copy/nll"], rel=1e-6)
        assert (copied["bleu"], copied["direction"]) == (found["bleu"], "en-en")
    for flags in (["--split=copy/test"], ["--tag=>>en<<", "--split=copy/dev"]):
        assert command("align", *flags, workdir=workdir).lines
    request = TranslateRequest({"tag": ">>en<<"})
    assert of_tags(open_run(workdir), request).config.data.direction == "en-en"
    assert Translator(workdir, tag=">>en<<").options.tag == ">>en<<"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("evaluate --tag=>>en<<", "fit --split=test, whose sources have >>de<<"),
        ("evaluate --source=text --reference=text", "lines without a tag, and the cor"),
        ("evaluate --split=translate/test --output=test.de", "is a file of the text"),
        ("translate --tag=>>fr<<", "no tag '>>fr<<'; it has >>de<<, >>en<<"),
        ("translate --tag=>>en<< --choose=RUN", "cannot rerank translations of en-en"),
        ("translate_corpus --source=text --output=new --tag=>>en<<", "the run transla"),
        ("translate_corpus --source=text --output=new --tag=>>en<< "
         "--split=translate/test",
         "fit --split=translate/test, whose sources have >>de<<"),
    ],
)  # fmt: skip
def test_tags_that_do_not_fit_are_refused(
    two_targets, command, toy, trained, tmp_path, monkeypatch, flags, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text(text_of(toy.dev))
    (tmp_path / "test.de").symlink_to(toy.directory / "test.de")
    mode, *flags = flags.replace("RUN", str(trained.workdir)).split()  # of en-de
    refused = command(mode, *flags, workdir=two_targets[0], stdin=["a"])
    assert said in refused.complaint
