"""A run that begins with another one, and a run that goes on differently."""

import json
import shutil

import jax
import numpy as np
import pytest

from jaxformer.runs.run import open_run, read_parameters
from jaxformer.runs.workdir import Workdir
from tests.commands.runs import config_flags, last_state, metrics, saved_steps

SHORT = config_flags("training", steps=10, save_every=5, eval_every=1000, keep=2)
GENTLE = config_flags("optimizer", schedule="constant", peak_learning_rate=1e-30)


def largest_difference(left, right):
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), left, right)
    return max(jax.tree.leaves(differences))


def record_of(workdir):
    return json.loads((workdir / "config.json").read_text())


@pytest.fixture(scope="module")
def begun(command, trained, tmp_path_factory):
    """Ten updates from the finished run, at a rate of about zero."""
    workdir = tmp_path_factory.mktemp("tuned") / "run"
    changes = config_flags("training", ema_decay=0.5, initial_embeddings="vectors")
    flags = (f"--init_from={trained.workdir}", *changes, *SHORT, *GENTLE)
    return workdir, command("train", *flags, workdir=workdir)


def test_a_run_begins_with_the_parameters_that_translate_uses_of_another(
    begun, trained
):
    """And its moving average; with its tokeniser and its config, at step zero."""
    workdir, answer = begun
    assert (answer.result["step"], saved_steps(workdir)) == (10, [5, 10])
    assert "training.init_from replaces training.initial_embeddings" in answer.err
    average = read_parameters(open_run(trained.workdir), None)
    latest = read_parameters(open_run(trained.workdir), "latest")
    found, ema = last_state(workdir, "params", "ema")
    assert largest_difference(found, average) == 0.0
    assert largest_difference(ema, average) == 0.0
    assert largest_difference(found, latest) > 1e-4
    (theirs,) = metrics(trained.workdir, "final")
    assert answer.result["bleu"] == theirs["bleu"]
    ours, base = (record_of(each)["config"] for each in (workdir, trained.workdir))
    assert ours["training"].pop("init_from") == str(trained.workdir)
    assert (ours["model"], ours["data"]) == (base["model"], base["data"])
    assert record_of(workdir)["tokenizer"] == record_of(trained.workdir)["tokenizer"]


def test_afterwards_the_run_needs_the_other_one_no_more(begun, command, tmp_path):
    """More updates at another rate, frozen parts and all, need no other flag."""
    workdir = shutil.copytree(begun[0], tmp_path / "own")
    record = record_of(workdir)
    flags = config_flags("training", steps=15, eval_every=15)
    rate = config_flags("optimizer", peak_learning_rate=1e-3)
    answer = command("train", *flags, *rate, workdir=workdir)
    assert "resuming" in answer.err
    assert saved_steps(workdir) == [10, 15]
    before, after = (last_state(each, "params")[0] for each in (begun[0], workdir))
    assert largest_difference(before, after) > 1e-4
    assert record_of(workdir)["config"]["model"] == record["config"]["model"]


def test_the_other_direction_begins_with_a_run_whose_languages_share_a_tokeniser(
    command, trained, toy, tmp_path, monkeypatch
):
    swapped = config_flags("data", source_language="de", target_language="en")
    flags = (f"--init_from={trained.workdir}", *swapped)
    answer = command("prepare", *flags, workdir=tmp_path / "run")
    assert answer.result["direction"] == record_of(tmp_path / "run")["direction"]
    assert answer.result["direction"] == "de-en"
    read = Workdir.read_tokenizer

    def with_two_models(self, record):
        tokenizer = read(self, record)
        tokenizer.target_model = b"another"
        return tokenizer

    monkeypatch.setattr(Workdir, "read_tokenizer", with_two_models)
    refused = command("prepare", *flags, workdir=tmp_path / "other").complaint
    assert "translates en-de, and its tokeniser has a model for each side" in refused
    files = ",".join(f"{toy.directory}/train.{side}" for side in ("de", "en"))
    for target in ("eng", "nld"):
        longer = config_flags(
            "data", corpus="files", directory="", train=files, dev=files, test="",
            source_language="deu", target_language=target,
        )  # fmt: skip
        refused = command("prepare", flags[0], *longer, workdir=tmp_path / "other")
        assert "has a model for each side" in refused.complaint
    again = command("prepare", flags[0], workdir=tmp_path / "same")
    assert again.result["direction"] == "en-de"


def test_a_tokeniser_that_is_not_that_of_the_run_is_refused(command, trained, tmp_path):
    own = shutil.copy(trained.workdir / "tokenizer.model", tmp_path / "own.model")
    begin = f"--init_from={trained.workdir}"
    flags = begin, f"--config.data.tokenizer={own}"
    assert command("prepare", *flags, workdir=tmp_path / "run").result
    small = config_flags("data", train="99", dev="9", test="9", vocab_size=99)
    assert command(
        "prepare", "--config=demo", *small, workdir=tmp_path / "other"
    ).result
    other = f"--config.data.tokenizer={tmp_path / 'other' / 'tokenizer.model'}"
    refused = command("prepare", begin, other, workdir=tmp_path / "new").complaint
    assert "is another tokeniser than that of" in refused


def test_frozen_parts_stay_as_they_were(command, trained, tmp_path):
    frozen = "--config.training.freeze=embedding,decoder/layer_0"
    patience = "--config.training.patience=1"  # also evaluates the last step
    flags = (f"--init_from={trained.workdir}", frozen, *SHORT, patience)
    answer = command("train", *flags, workdir=tmp_path / "run")
    (scores,) = metrics(tmp_path / "run", "eval")
    assert (scores["step"], answer.result["step"]) == (10, 10)
    assert answer.result["nll"] == pytest.approx(scores["nll"], rel=1e-6)
    average = read_parameters(open_run(trained.workdir), None)
    params, state = last_state(tmp_path / "run", "params", "opt_state")
    assert largest_difference(params["embedding"], average["embedding"]) == 0.0
    layers = [each["decoder"]["layer_0"] for each in (params, average)]
    assert largest_difference(*layers) == 0.0
    encoders = [each["encoder"] for each in (params, average)]
    assert largest_difference(*encoders) > 1e-4
    moments = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert moments == 2 * sum(leaf.size for leaf in jax.tree.leaves(encoders[0]))


@pytest.mark.usefixtures("quick_check")
def test_check_counts_what_is_frozen_and_what_the_updates_keep(command, trained):
    frozen = "--config.training.freeze=embedding"
    flags = (f"--init_from={trained.workdir}", frozen)
    result = command("check", *flags).result
    (params,) = last_state(trained.workdir, "params")
    assert result["frozen_parameters"] == params["embedding"].size
    assert result["parameters"] > result["frozen_parameters"]


def test_patience_ends_a_run_and_translate_uses_its_best_checkpoint(
    command, trained, tmp_path
):
    """A rate that ruins the model; a finished run stays finished."""
    ruin = config_flags("optimizer", schedule="constant", peak_learning_rate=0.3)
    every = config_flags(
        "training", steps=100, save_every=2, eval_every=2, patience=2, best_by="nll"
    )
    flags = (f"--init_from={trained.workdir}", *ruin, *every)
    answer = command("train", *flags, workdir=tmp_path)
    scores = {each["step"]: each["nll"] for each in metrics(tmp_path, "eval")}
    best = min(scores, key=scores.get)
    assert answer.result["step"] == best + 4 == max(scores) < 100
    assert "2 evaluations in a row without a better nll" in answer.err
    assert best in saved_steps(tmp_path)
    assert answer.result["nll"] == pytest.approx(scores[best], rel=1e-6)
    again = command("train", workdir=tmp_path)
    assert again.result["step"] == answer.result["step"]
