"""COMET's scores by a stand-in for its package, in a process of its own."""

import re

import pytest

from jaxformer.evaluation import comet_scores
from jaxformer.evaluation.comet_scores import Comet
from jaxformer.system.errors import InputError

TRIPLES = [("good", "a b c", "a x"), ("bad\u2028", "a\nb", "a b"), ("", "", "ä")]


def test_all_pairs_are_scored_in_one_call_in_their_order(stand_in_comet):
    comet = Comet(stand_in_comet.file, None)
    assert comet(TRIPLES) == pytest.approx([1 / 3 + 0.03, 0.02, 0.0])
    assert comet([]) == []
    assert comet(TRIPLES[:1]) == pytest.approx([1 / 3 + 0.03])
    first, second = stand_in_comet.calls()
    assert [tuple(each.values()) for each in first] == TRIPLES
    assert first[0] == {"src": "good", "mt": "a b c", "ref": "a x"}
    assert len(second) == 1
    assert comet.signature == f"unbabel-comet:2.2.7|model:{stand_in_comet.file}"


def test_many_pairs_are_sent_in_blocks(stand_in_comet, monkeypatch):
    monkeypatch.setattr(comet_scores, "BLOCK", 2)
    assert Comet(stand_in_comet.file, None)(TRIPLES) == pytest.approx(
        [1 / 3 + 0.03, 0.02, 0.0]
    )
    assert [len(call) for call in stand_in_comet.calls()] == [2, 1]


def refusal(*arguments) -> str:
    with pytest.raises(InputError) as caught:
        Comet(*arguments)
    return str(caught.value)


def test_a_missing_package_or_file_is_one_line(stand_in_comet, monkeypatch):
    file = stand_in_comet.file
    assert refusal(file.parent, None) == (
        f"comet={file.parent} is no file; give the model.ckpt of a COMET model"
    )
    (file.parents[1] / "hparams.yaml").unlink()
    assert refusal(file, None) == (
        f"COMET cannot be used: hparams.yaml file is missing from {file.parents[1]}!"
    )
    monkeypatch.delenv("PYTHONPATH")
    said = refusal(file, None)
    assert re.search(r" lacks comet, which COMET needs; make an environment", said)
    assert (
        "pip install 'unbabel-comet>=2.2.4') and name its Python: --comet=FILE," in said
    )


def test_a_process_that_ends_is_named(stand_in_comet):
    comet = Comet(stand_in_comet.file, None)
    with pytest.raises(InputError, match="ended with exit status 3 before"):
        comet([("exit", "", "")])
    with pytest.raises(InputError, match="ended with exit status 3 before"):
        comet(TRIPLES)
