"""jaxformer evaluate --hypotheses: files of translations by any system."""

import gzip
import json
import random
import subprocess
import sys

import pytest
import sentencepiece
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_spm

import jaxformer
from jaxformer.evaluation import significance
from jaxformer.evaluation.significance import compare_systems
from tests.comet_package import score
from tests.commands.runs import text_of

WORDS = "un chien brun court vers l'eau, où Marie-Claire l'attend: «Viens!»".split()  # noqa: SIM905
FRENCH = "--target_language=fra"


def spoil(lines, seed):
    """Exchange, leave out and repeat words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(w := line.split(), k=len(w))) for line in lines]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Write the files of a text of 40 lines; returns them by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(significance, "TRIALS", 200)
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path / "none"))
    draw = random.Random(0)
    first = [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(40)]
    made = {"ref": first, "other": spoil(first, 1), "a": spoil(first, 2)}
    made |= {
        "b": [*first[:20], *made["a"][20:]],
        "source": [f"s{n}" for n in range(40)],
    }
    for name, lines in made.items():
        (tmp_path / name).write_text(text_of(lines))
    return made


def scores_of(result):
    rows = [*result["every_bleu"], *result["other_scores"]]
    return {scorer: tuple(rest) for scorer, *rest in map(dict.values, rows)}


def sacrebleu(*flags):
    """Score `a` with sacreBLEU's command line; returns score and signature of each."""
    line = [sys.executable, "-m", "sacrebleu", *flags, "-i", "a", "-w", "20"]
    found = json.loads(subprocess.run(line, capture_output=True, check=True).stdout)
    return [
        (each["score"], each["signature"])
        for each in (found if isinstance(found, list) else [found])
    ]


def test_scores_and_signatures_are_those_of_sacrebleus_command_line(command, texts):
    """With two references, in files or in the columns of one, plain or compressed."""
    answer = command("evaluate", "--hypotheses=a", "--reference=ref,other", FRENCH)
    found = scores_of(answer.result)
    every = "-m bleu chrf ter --chrf-word-order 2".split()  # noqa: SIM905
    names = ["sacreBLEU", "chrF++", "TER"]
    assert [found[name] for name in names] == sacrebleu("ref", "other", *every)
    lower = ("ref", "other", "-lc", "-tok", "intl")
    assert [found["sacreBLEU intl lower-cased"]] == sacrebleu(*lower)
    assert {signature.split("|")[0] for _, signature in found.values()} == {"nrefs:2"}
    for scorer, (value, signature) in found.items():
        assert f"{value:6.2f}  {scorer:<30}  {signature}" in answer.err
    pairs = map("\t".join, zip(texts["ref"], texts["other"], strict=True))
    with gzip.open("both.tsv.gz", "wt", encoding="utf-8") as columns:
        columns.write(text_of(pairs))
    both = ("--hypotheses=a", "--reference=both.tsv.gz", "--source_language=en", FRENCH)
    result = command("evaluate", *both).result
    assert result == answer.result | {"direction": "en-fra"}
    assert answer.result["direction"] == "und-fra"
    shown = command("evaluate", *both, is_terminal=True)
    assert (shown.code, shown.out) == (0, b"")  # the log says it
    one = command("evaluate", "--hypotheses=a", "--reference=ref", FRENCH).result
    assert one["bleu"] != result["bleu"]


@pytest.mark.parametrize(
    ("language", "text", "tokenizer", "asian"),
    [
        ("zho", "我爱北京城和上海", "zh", "yes"),
        ("cmn", "我爱北京城和上海", "zh", "yes"),
        ("jpn", "私は毎朝公園を散歩します。", "ja-mecab", "yes"),
        ("kor", "나는 매일 아침 공원을 산책한다.", "ko-mecab", "no"),
        ("tha", "ฉันเดินเล่นในสวนทุกเช้า", "char", None),
    ],
)
def test_codes_of_three_letters_choose_the_tokeniser(
    command, texts, tmp_path, language, text, tokenizer, asian
):
    """TER counts characters where words have no spaces: one of them is wrong here."""
    (tmp_path / "a").write_text(f"{text}\n{text[:-1]}x\n")
    (tmp_path / "ref").write_text(f"{text}\n{text}\n")
    flags = "--hypotheses=a", "--reference=ref", f"--target_language={language}"
    found = scores_of(command("evaluate", *flags).result)
    assert f"|tok:{tokenizer}" in found["sacreBLEU"][1]
    assert ("TER" in found) == bool(asian)
    if asian:
        assert f"|asian:{asian}" in found["TER"][1]
        assert 0 < found["TER"][0] < 20


def test_further_files_are_tested_against_the_first(command, texts):
    flags = "--hypotheses=a,b", "--hypotheses=other", "--reference=ref,other", FRENCH
    answer = command("evaluate", *flags)
    assert [each["name"] for each in answer.result["compared"]] == ["b", "other"]
    systems, references = [texts[n] for n in ("a", "b", "other")], ("ref", "other")
    expected = compare_systems(
        systems, *(texts[name] for name in references), target_language="fr"
    )
    for each, test in zip(answer.result["compared"], expected, strict=True):
        assert each["test"] == {name: found._asdict() for name, found in test.items()}
        bleu = each["test"]["bleu"]
        difference = each["scores"]["bleu"] - answer.result["bleu"]
        assert bleu["difference"] == pytest.approx(difference)
        assert bleu["difference"] > 0
        assert bleu["randomisation_p"] < 0.05
        assert "nrefs:2|ar:200" in bleu["randomisation_signature"]
        assert f"{each['name']} less a: bleu +{difference:.2f}, p " in answer.err
    alone = command("evaluate", "--hypotheses=b", *flags[2:]).result
    assert answer.result["compared"][0]["scores"] | {"compared": []} == alone


def test_spbleu_needs_a_model_of_sacrebleu_and_downloads_none(
    command, texts, tmp_path, monkeypatch
):
    """Its score is BLEU of the model's pieces."""
    monkeypatch.setattr(tokenizer_spm, "download_file", pytest.fail)
    flags = "--hypotheses=a", "--reference=ref", FRENCH
    without = command("evaluate", *flags)
    assert "spBLEU is left out: there is no" in without.err
    assert "spBLEU flores200" not in scores_of(without.result)
    model = tmp_path / "none" / "models" / "flores200sacrebleuspm"
    model.parent.mkdir(parents=True)
    model.write_text("no model")
    assert (
        "is no SentencePiece model; remove it" in command("evaluate", *flags).complaint
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts["ref"]), model_prefix=str(model), vocab_size=60,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model.with_name(f"{model.name}.model").replace(model)
    split = sentencepiece.SentencePieceProcessor(model_file=str(model)).encode_as_pieces
    a, ref = ([" ".join(split(line)) for line in texts[name]] for name in ("a", "ref"))
    expected = BLEU(tokenize="none", force=True).corpus_score(a, [ref]).score
    value, signature = scores_of(command("evaluate", *flags).result)["spBLEU flores200"]
    assert (value, "|tok:flores200" in signature) == (pytest.approx(expected), True)


def test_comet_reads_the_sources_and_the_first_references(texts, stand_in_comet):
    result = jaxformer.evaluate(
        hypotheses=["a", "b"], reference=["ref", "other"], source="source",
        target_language="fr", comet=stand_in_comet.file,
    )  # fmt: skip
    first, second = stand_in_comet.calls()
    assert [each["src"] for each in second] == texts["source"]
    assert [each["mt"] for each in second] == texts["b"]
    assert [each["ref"] for each in second] == texts["ref"]
    assert result.comet == pytest.approx(sum(map(score, first)) / 40)
    other = result.compared[0]["scores"]["comet"]
    assert other == pytest.approx(sum(map(score, second)) / 40)
    assert (result.nll, result.sentences) == (None, 40)
