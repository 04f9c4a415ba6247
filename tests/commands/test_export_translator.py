"""An export for CTranslate2 in place of its run: the same commands, the same text."""

import importlib.util
import json
import shutil
from functools import partial

import pytest

import jaxformer
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.decoding.request_queue import PHRASES, RequestQueue
from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.runs.open import open_translator
from jaxformer.runs.run import open_run
from tests.commands.runs import pair_flags

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="extra `export`"
)
# Of log P of a token: it normalises probabilities without what is suppressed.
MOST = 0.002


@pytest.fixture(scope="module")
def exported(use, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "toy"
    flags = "--format=ctranslate2", f"--output={folder}"
    assert use("export", *flags).result["output"] == str(folder)
    return folder


@pytest.fixture(scope="module")
def use_export(command, exported):
    return partial(command, workdir=exported)


def lines_of(toy) -> list[str]:
    """Ordinary lines, a blank one, unknown words and a line in three parts."""
    odd = ["", "unbekannt bo", "\u2603", " ".join(toy.test) + ", " + " ".join(toy.dev)]
    return [*toy.test, *odd, "bo da. Fe gi."]


@pytest.mark.parametrize(
    "flags",
    [
        "--beam_size=1 --no_repeat_ngram=1 --min_length=9",
        "--beam_size=3 --n_best=3",
        "--beam_size=3 --n_best=2 --alpha=0 --split_sentences",
        "--beam_size=4 --length_penalty=power --config.decoding.alpha=0.8",
    ],
)
def test_the_same_translations_and_scores(use, use_export, toy, flags):
    lines, flags = lines_of(toy), ["--json", *flags.split()]
    ours, theirs = (
        [*map(json.loads, run("translate", *flags, stdin=lines).lines)]
        for run in (use, use_export)
    )
    for line, own, other in zip(lines, ours, theirs, strict=True):
        assert own["source"] == other["source"] == line
        for a, b in zip(own["hypotheses"], other["hypotheses"], strict=True):
            for key in ("score", "log_probability"):
                more = b.pop(key) - a.pop(key)
                assert -1e-4 <= more <= MOST * a["tokens"]
            assert len(a["log_probabilities"]) == len(a["pieces"])
            assert b == {**a, "words": [], "log_probabilities": []}


def test_prefixes_and_limits_are_scored_as_whole_translations(trained, exported, toy):
    """No translation of this text ends by itself with so few tokens."""
    sentence, prefix = max(toy.test, key=len), toy.translate(toy.dev[0])
    run = jaxformer.Translator(trained.workdir, beam_size=3, extra_length=0)
    export = jaxformer.Translator(exported, beam_size=3, n_best=3, extra_length=0)
    texts, prefixes = [sentence, *toy.test], [prefix, *[""] * len(toy.test)]
    ours = run.translate(texts, prefixes=prefixes)
    theirs = export.translate(texts, prefixes=prefixes)
    assert [own[0].pieces for own in ours] == [other[0].pieces for other in theirs]
    found = [each for hypotheses in theirs for each in hypotheses]
    assert all(len(each.pieces) <= len(each.source_pieces) for each in found[3:])
    assert all(each.text.startswith(prefix) for each in found[:3])
    sides = zip(*((each.source_pieces, each.pieces) for each in found), strict=True)
    for each, scored in zip(found, run.score(*sides), strict=True):
        more = each.log_probability - scored.log_probability
        assert -1e-4 <= more <= MOST * len(each.pieces)


def test_scores_of_a_text_and_a_corpus(use, use_export, toy, tmp_path):
    references = [*map(toy.translate, toy.test)]
    pairs = pair_flags(tmp_path, zip(toy.test, references, strict=True))
    result = use_export("evaluate", *pairs).result
    found = use_export("translate", stdin=toy.test).lines
    how = {"source_language": "en", "target_language": "de"}
    assert result["bleu"] == corpus_scores(found, references, **how).bleu > 5
    assert (result["nll"], result["ppl"], result["direction"]) == (None, None, "en-de")
    flags = pairs[0], f"--output={tmp_path / 'corpus'}", "--no-languages"
    assert use_export("translate_corpus", *flags).result["lines"] == len(toy.test)
    assert "parameters" in use("translate_corpus", *flags).complaint


@pytest.mark.parametrize(
    ("mode", "flags", "said"),
    [
        ("translate", "--temperature=1", "draws no samples that a seed gives again; "),
        ("translate", "--phrases=phrases", "has no search for phrases; leave them out"),
        ("translate", "--checkpoint=50", "checkpoint is for runs, and "),
        ("translate", "--ensemble=RUN", "ensemble is for runs, and "),
        ("translate", "--dtype=auto", "dtype is for runs, and "),
        ("translate", "--alignment", "an export has no attention, and no scores of gi"),
        ("translate", "--config.model.d_ff=1", "holds a run with model.d_ff=64, and "),
        ("evaluate", "--choose=EXPORT", "an export for another program, and no run; g"),
        *((mode, flags, "is an export for another program, and no run; give the run th")
          for mode, flags in (("train", ""), ("score", ""), ("visualize", ""),
                              ("export", "--format=marian --output=new"))),
    ],
)  # fmt: skip
def test_what_an_export_cannot_do_is_one_line(
    use_export, exported, trained, toy, tmp_path, monkeypatch, mode, flags, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phrases").write_text("SU\n")
    flags = flags.replace("RUN", str(trained.workdir)).replace("EXPORT", str(exported))
    before = sorted(exported.rglob("*"))
    given = use_export(mode, *flags.split(), stdin=toy.test[:1])
    assert said in given.complaint
    assert sorted(exported.rglob("*")) == before


def test_a_model_of_another_program_and_a_damaged_one(command, exported, tmp_path):
    translate = partial(command, "translate", workdir=tmp_path / "copy")
    shutil.copytree(exported, tmp_path / "copy")
    (tmp_path / "copy" / "model.bin").write_bytes(b"damaged")
    assert "cannot be loaded by CTranslate2 (" in translate().complaint
    shutil.rmtree(tmp_path / "copy" / "run")
    assert "is a model of CTranslate2 without the folder run/" in translate().complaint


def test_requests_of_a_server(exported, toy):
    run = open_run(exported)
    options = TranslateRequest().resolve(run.config, n_best=2, split_sentences=True)
    translator = open_translator(run, ModelChoice(), options)
    served = RequestQueue(translator, slots=4, attention=20)
    assert [*served.compile()][-1] == (PHRASES, PHRASES)
    expected, answers = translator([*toy.test, *toy.dev]), {}

    def submit(request, texts, phrases=()):
        parts = [served.text.tasks(text, "", phrases, 0) for text in texts]
        done = partial(answers.__setitem__, request)
        served.submit(parts, done, done, request=request)

    submit("small", toy.test)
    submit("large", toy.dev * 20)
    submit("cancelled", toy.dev)
    with pytest.raises(jaxformer.InputError, match="no search for phrases"):
        submit("phrases", toy.test, ["SU"])
    served.cancel("cancelled")
    served.cancel("phrases")
    assert served.load == (len(toy.test) + 20 * len(toy.dev), 0)
    while served.advance():
        assert list(answers) in ([], ["small"])  # which waits for no large one
    found = [each.hypotheses[0].text for each in answers["small"] + answers["large"]]
    assert found[: len(expected)] == expected
    assert found[len(toy.test) :] == expected[len(toy.test) :] * 20
    assert not translator.has_attention
