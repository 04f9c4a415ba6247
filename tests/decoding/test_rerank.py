"""Hypotheses in the order of further models' scores, by hand."""

import math
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxformer.decoding.forced import PairScore, TeacherForcing
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.rerank import Reranker, rerank
from jaxformer.runs.open import _direction
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.training.sharding import batch_sharding
from tests.decoding.tiny import (
    MODEL,
    SENTENCES,
    Numbers,
    open_translator,
    params_of,
    random_sentences,
)
from tests.models.tiny import model_of
from tests.training.setups import mesh_of

SMALL = model_of(num_heads=1, d_ff=16, positions="learned", max_positions=24)


def reranker(model=MODEL, seed=1, *, weight=1.0, is_reverse=False, tag="", rows=None):
    forcing = TeacherForcing(model, Numbers(), batch_tokens=64, rows=rows)
    params = params_of(model, seed)
    return Reranker("runs/b", forcing, params, Numbers(), weight, is_reverse, tag)


class Recorder:
    """A stand-in for teacher forcing: log P of a pair is the negative last number."""

    def __init__(self):
        self.seen = []

    def fits(self, sources, targets):
        return np.ones(len(sources), bool)

    def score(self, params, sources, targets):
        self.seen.append((sources, targets))
        return [PairScore(["</s>"], [-float(s.split()[-1])]) for s in sources]


class Counting(Recorder):
    """A piece is a word of the translation, or the end."""

    def score(self, params, sources, targets):
        pairs = zip(super().score(params, sources, targets), targets, strict=True)
        return [
            each._replace(pieces=[*target.split(), "</s>"]) for each, target in pairs
        ]


def recorder(**kind) -> Reranker:
    return reranker(**kind)._replace(forcing=Recorder())


def found_of(*lists: list[str]) -> list[list[Hypothesis]]:
    """Hypotheses with scores 0, -1, -2, ..."""
    return [
        [Hypothesis(text, -float(rank), -9.0, 3) for rank, text in enumerate(texts)]
        for texts in lists
    ]


def reranked(sources, found, *models) -> list[list[Hypothesis]]:
    options = SearchOptions(beam_size=3, alpha=0.6)
    how = {"language_code": Numbers().language_code, "options": options}
    return rerank(sources, found, models=models, **how)


def test_scores_are_weighted_sums_over_length_penalties():
    """Lengths are those of the side that a model translates to."""
    models = [
        recorder(weight=weight, is_reverse=is_reverse)._replace(forcing=Counting())
        for weight, is_reverse in ((3.0, False), (2.0, True))
    ]
    ((first, second),) = reranked(["4 5 6"], found_of(["7", "9 8"]), *models)

    def penalty(n: int) -> float:
        return ((5 + n) / 6) ** 0.6

    reverse = 2 / penalty(4)
    assert (first.text, second.text) == ("7", "9 8")
    assert first.score == pytest.approx(0 - 3 * 6 / penalty(2) - 7 * reverse)
    assert second.score == pytest.approx(-1 - 3 * 6 / penalty(3) - 8 * reverse)


def test_a_reverse_model_scores_the_source_and_decides_by_its_weight():
    found = found_of(["9", "7", "8"], ["5"])
    sources = [">>5<< 4 6", "4"]
    model = recorder(is_reverse=True, tag=">>3<<")
    (first, second) = reranked(sources, found, model)
    ((translations, originals),) = model.forcing.seen  # one call for all lines
    assert translations == [">>3<< 9", ">>3<< 7", ">>3<< 8", ">>3<< 5"]
    assert originals == ["4 6", "4 6", "4 6", "4"]  # without the tag
    assert [(each.text, each.score) for each in first] == [
        ("7", -8.0), ("9", -9.0), ("8", -10.0),
    ]  # fmt: skip
    assert [each.score for each in second] == [-5.0]
    assert {each.log_probability for each in first} == {-9.0}
    assert reranked(sources, found, model._replace(weight=0.0)) == found


@pytest.mark.parametrize(
    ("tag", "sources"),
    [(">>5<<", [">>5<< 4", ">>5<< 6"]), (">>6<<", [">>5<< 4", ">>6<< 6"])],
)
def test_a_forward_model_has_the_tag_of_the_source_or_its_own(tag, sources):
    model = recorder(tag=tag)
    reranked([">>5<< 4", "6"], found_of(["7"], ["8"]), model)
    assert model.forcing.seen == [(sources, ["7", "8"])]


def test_a_diverged_model_is_refused():
    model = reranker()
    diverged = model._replace(params=jax.tree.map(lambda x: x * np.nan, model.params))
    with pytest.raises(InputError, match=r"runs/b gives .* not numbers; use another"):
        reranked(["4"], found_of(["7"]), diverged)


def test_lines_are_scored_alike_together_alone_and_on_several_devices():
    found = found_of(*([text, "", text[:3]] for text in random_sentences(9, longest=9)))
    for model in (reranker(), reranker(is_reverse=True)):
        together = reranked(SENTENCES, found, model)
        spread = model._replace(
            forcing=reranker(rows=batch_sharding(mesh_of((4, 1, 1)))).forcing
        )
        others = reranked(SENTENCES, found, spread)
        for source, hypotheses, *both in zip(
            SENTENCES, found, together, others, strict=True
        ):
            (alone,) = reranked([source], [hypotheses], model)
            for each in both:
                assert [h.text for h in each] == [h.text for h in alone]
                scores = [h.score for h in alone]
                assert [h.score for h in each] == pytest.approx(scores, rel=1e-4)


def test_equal_samples_are_kept_once_and_blank_lines_have_no_candidates():
    (found,) = reranked(["4"], found_of(["7", "7", "6"]), recorder(is_reverse=True))
    assert [(each.text, each.score) for each in found] == [("7", -7.0), ("6", -8.0)]
    assert reranked([], [], reranker()) == []
    translator = open_translator(
        choose=lambda sources, found: reranked(sources, found, reranker())
    )
    assert translator(["", "5"]) == ["", translator("5")]


def test_each_part_of_a_line_is_reranked_by_its_own_text():
    model = recorder(weight=1e6, is_reverse=True)
    translator = open_translator(
        split_sentences=True, max_source_length=4, long_lines="split",
        choose=lambda sources, found: reranked(sources, found, model),
    )  # fmt: skip
    (found,) = translator.translate(["5 6. 7 8 9 10\n11"])
    ((_, originals),) = model.forcing.seen
    assert list(dict.fromkeys(originals)) == ["5 6.", "7 8 9", "10", "11"]
    assert math.isfinite(found[0].score)


def test_a_model_leaves_out_a_line_beyond_its_positions(caplog):
    hypotheses = found_of(["7", "8 9"], ["8", "9"])
    found = reranked(["4", "4 " * 25], hypotheses, reranker(SMALL, weight=9.0))
    assert found[1] == [*hypotheses[1]]
    (alone,) = reranked(["4"], hypotheses[:1], reranker(SMALL, weight=9.0))
    assert found[0] == alone
    one_too_long = found_of(["7", "8 " * 25])
    assert reranked(["4"], one_too_long, reranker(SMALL, weight=9.0)) == one_too_long
    assert "runs/b has no positions for 1 of 2 sentences and leaves" in caplog.text


@pytest.mark.parametrize(
    ("tags", "expected"),
    [(["", ">>bt<<"], ""), ([">>bt<<", ""], ""), ([">>d<<"], ">>d<<")],
)
def test_a_reranker_has_the_tag_of_real_text(tags, expected):
    """Other corpora of a direction mark text that was made."""
    assert direction_of(tags) == (False, expected, "")


def test_a_reranker_has_the_target_tag_of_its_direction():
    assert direction_of([">>a<<"], [">>x<<"]) == (False, ">>a<<", ">>x<<")
    with pytest.raises(InputError, match="runs/b has several target tags for en-de"):
        direction_of([">>a<<", ">>a<<"], [">>x<<", ">>y<<"])


def test_a_reranker_of_several_tags_is_refused():
    with pytest.raises(InputError, match="runs/b has the tags >>a<<, >>b<< for en-de"):
        direction_of([">>b<<", ">>a<<"])


def direction_of(tags, targets=("", "")):
    """What is found of a run whose corpora of one direction have these tags."""

    def run_of(tags):
        languages = {"source_language": "en", "target_language": "de"}
        datas = [
            SimpleNamespace(tag=tag, target_tag=target, **languages)
            for tag, target in zip(tags, targets, strict=False)
        ]
        parts = {str(n): SimpleNamespace(data=data) for n, data in enumerate(datas)}
        config = SimpleNamespace(data=SimpleNamespace(parts=parts, **languages))
        return SimpleNamespace(config=config, workdir=Workdir(Path("runs/b")))

    return _direction(run_of([""]), run_of(tags))
