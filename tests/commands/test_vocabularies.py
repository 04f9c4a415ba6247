"""A run with a vocabulary for each language, from its text to its exports."""

import functools
import json
import shutil
import zipfile

import pytest

import jaxformer
from jaxformer.corpus.prepared import open_prepared
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import UNK
from tests.commands.conftest import EXTRA_LENGTH, SOURCE, TARGET
from tests.commands.runs import config_flags, pair_flags, text_of
from tests.commands.test_export import needs_ctranslate2, run_program

TAG = ">>de<<"
pytestmark = pytest.mark.slow
FLAGS = (
    *config_flags("data", shared_vocabulary=False, tag=TAG),
    *config_flags("data", user_defined_symbols="__N__"),
    *config_flags("training", seed=1),
    *config_flags("model", tied_embeddings="target"),
)


@pytest.fixture(scope="module")
def workdir(command, toy, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("separate") / "run"
    answer = command("train", *toy.flags, *FLAGS, workdir=workdir)
    assert answer.result["bleu"] > 50
    return workdir


@pytest.fixture(scope="module")
def use(command, workdir):
    """Give commands on the finished run."""
    return functools.partial(command, workdir=workdir)


def test_each_language_has_ids_of_its_own(workdir, use, toy):
    prepared = open_prepared(workdir)
    tokenizer = prepared.tokenizer
    sides = tokenizer.source_pieces(), tokenizer.pieces()
    assert [TAG in pieces for pieces in sides] == [True, False]
    assert all("__N__" in pieces for pieces in sides)
    letters = ["".join(pieces[4:]).replace("__N__", "") for pieces in sides]
    assert not {*"".join(SOURCE)} & {*letters[1]}
    assert not {*"".join(TARGET)} & {*letters[0]}
    for side, pieces in zip(prepared.train, sides, strict=True):
        assert UNK < side.tokens.max() < len(pieces)
        assert UNK not in side.tokens
    names = zipfile.ZipFile(workdir / "tokenizer.model").namelist()
    assert names == ["source.spm", "target.spm"]


@pytest.mark.usefixtures("quick_check")
def test_check_counts_both_matrices(command, toy, workdir):
    result = command("check", workdir=workdir).result
    tokenizer, d_model = open_prepared(workdir).tokenizer, 32
    parts = result["parameters_by_part"]
    assert parts["embedding"] == tokenizer.vocab_size * d_model
    assert parts["source_embedding"] == tokenizer.source_vocab_size * d_model
    assert tokenizer.vocab_size != tokenizer.source_vocab_size
    assert "output_embedding" not in parts


def test_what_translate_found_has_the_same_score(use, workdir, toy, tmp_path):
    """Also for a given text, whose score Python knows too."""
    lines = toy.test[:5]
    found = use("translate", "--json", "--alignment", stdin=lines).lines
    (tmp_path / "found.jsonl").write_text(text_of(found))
    details = use("score", f"--reference={tmp_path / 'found.jsonl'}", "--json").lines
    for line, record, detail in zip(lines, found, details, strict=False):
        best, detail = json.loads(record)["hypotheses"][0], json.loads(detail)
        assert best["source_pieces"][0] == TAG
        assert "".join(best["source_pieces"][1:-1]).replace("▁", " ")[1:] == line
        assert "".join(best["pieces"][:-1]).replace("▁", " ")[1:] == best["text"]
        expected = pytest.approx(best["log_probability"], rel=1e-4)
        assert detail["log_probability"] == expected
        assert detail["pieces"] == best["pieces"]
    right = [*map(toy.translate, lines)]
    (tmp_path / "prefix").write_text(right[0] + "\n" * len(lines))
    begun = use("translate", f"--prefix={tmp_path / 'prefix'}", stdin=lines)
    assert begun.lines[0].startswith(right[0])
    translator = jaxformer.Translator(workdir)
    pairs = pair_flags(tmp_path, zip(lines, right, strict=True))
    details = use("score", *pairs, "--json").lines
    for own, line in zip(translator.score(lines, right), details, strict=False):
        expected = pytest.approx(json.loads(line)["log_probability"], rel=1e-5)
        assert own.log_probability == expected
    assert translator.attention(lines[0], right[0]).source[0] == TAG


def test_links_are_those_of_the_text_without_the_tag(use, toy, tmp_path):
    pairs = [(line, toy.translate(line)) for line in toy.test[:5]]
    links = use("align", *pair_flags(tmp_path, pairs)).lines
    tagged = [(f"{TAG} {line}", right) for line, right in pairs]
    with_tag = use("align", *pair_flags(tmp_path, tagged)).lines
    for (line, _), own, other in zip(pairs, links, with_tag, strict=True):
        ends, others = (
            [[*map(int, link.split("-"))] for link in each.split()]
            for each in (own, other)
        )
        assert 0 < len(ends) <= len(line.split())
        assert {s for s, _ in ends} <= {*range(len(line.split()))}
        assert [[s + 1, t] for s, t in ends] == [each for each in others if each[0]]


def test_another_run_begins_with_it_or_with_its_files(command, toy, workdir, tmp_path):
    begin = f"--init_from={workdir}"
    command("prepare", *toy.flags, *FLAGS, begin, workdir=tmp_path / "begun")
    other = tmp_path / "begun" / "tokenizer.model"
    assert other.read_bytes() == (workdir / "tokenizer.model").read_bytes()
    packed = zipfile.ZipFile(other)
    for side in ("source", "target"):
        (tmp_path / f"{side}.spm").write_bytes(packed.read(f"{side}.spm"))
    files = f"{tmp_path}/source.spm,{tmp_path}/target.spm"
    given = tmp_path / "given"
    flag = f"--config.data.tokenizer={files}"
    command("prepare", *toy.flags, *FLAGS, flag, workdir=given)
    assert (given / "tokenizer.model").read_bytes() == other.read_bytes()
    new = tmp_path / "new"
    swapped = f"--config.data.tokenizer={tmp_path}/target.spm,{tmp_path}/source.spm"
    answer = command("prepare", *toy.flags, *FLAGS, swapped, workdir=new)
    assert f"the tokeniser has no piece '{TAG}'" in answer.complaint
    shared = f"--config.data.tokenizer={workdir}/tokenizer.model"
    answer = command("prepare", *toy.flags, shared, workdir=new)
    assert "a vocabulary of each of the languages" in answer.complaint


@needs_ctranslate2
@pytest.mark.parametrize(
    "tied", ["target", pytest.param("none", marks=pytest.mark.nightly)]
)
def test_exports_translate_as_we_do(command, toy, workdir, tied, tmp_path, request):
    """CTranslate2's program, and a Marian checkpoint imported again."""
    if tied == "none":
        workdir = tmp_path / "none"
        flags = *toy.flags, *FLAGS, f"--config.model.tied_embeddings={tied}"
        assert command("train", *flags, workdir=workdir).result["bleu"] > 50
    lines = [f"{TAG} {line}" for line in toy.test]
    ours = command("translate", workdir=workdir, stdin=lines).lines
    folder = tmp_path / "ctranslate2"
    flags = "--format=ctranslate2", f"--output={folder}"
    assert command("export", *flags, workdir=workdir).result["format"] == "ctranslate2"
    for given in lines, toy.test:
        assert run_program(folder / "translate.py", given) == ours
    marian, again = tmp_path / "marian", tmp_path / "again"
    flags = "--format=huggingface", f"--output={marian}"
    command("export", *flags, workdir=workdir)
    command("import", *toy.flags, f"--input={marian}", workdir=again)
    assert (again / "tokenizer.model").read_bytes() == (
        workdir / "tokenizer.model"
    ).read_bytes()
    assert command("translate", workdir=again, stdin=lines).lines == ours
    greedy = command("translate", "--beam_size=1", workdir=workdir, stdin=lines).lines
    transformers = request.getfixturevalue("transformers")
    limits = [len(ids) + EXTRA_LENGTH for ids in transformers("encode", marian, lines)]
    for line, limit, expected in zip(lines, limits, greedy, strict=True):
        how = {"num_beams": 1, "max_new_tokens": limit}
        assert transformers("translate", marian, [line], **how) == [expected]


def test_a_damaged_half_is_refused(workdir, tmp_path, command):
    copy = shutil.copytree(workdir, tmp_path / "copy")
    with zipfile.ZipFile(copy / "tokenizer.model", "w") as archive:
        archive.writestr("source.spm", b"text")
    answer = command("translate", workdir=copy, stdin=["bo"])
    assert "tokenizer.model is damaged or not the tokeniser" in answer.complaint
    with pytest.raises(Exception, match="damaged or not a SentencePiece model"):
        Tokenizer.load(copy / "tokenizer.model")
