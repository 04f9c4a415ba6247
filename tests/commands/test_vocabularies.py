"""A run with a vocabulary for each language, from its text to its exports."""

import functools
import json
import math
import shutil
import zipfile

import pytest

import jaxformer
from jaxformer.corpus.prepared import open_prepared
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import UNK
from tests.commands.conftest import EXTRA_LENGTH, SOURCE, TARGET
from tests.commands.runs import config_flags, pair_flags
from tests.commands.test_export import needs_ctranslate2, program_of, run_program

TAG = ">>de<<"
pytestmark = pytest.mark.slow
FLAGS = (
    *config_flags("data", shared_vocabulary=False, tag=TAG),
    *config_flags("data", user_defined_symbols="__N__"),
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
    lines = toy.test[:5]
    found = use("translate", "--json", "--alignment", stdin=lines).lines
    (tmp_path / "found.jsonl").write_text("\n".join(found))
    file = f"--reference={tmp_path / 'found.jsonl'}"
    details = use("score", file, "--json").lines
    for line, record, detail in zip(lines, found, details, strict=False):
        best, detail = json.loads(record)["hypotheses"][0], json.loads(detail)
        assert best["source_pieces"][0] == TAG
        assert "".join(best["source_pieces"][1:-1]).replace("▁", " ")[1:] == line
        assert "".join(best["pieces"][:-1]).replace("▁", " ")[1:] == best["text"]
        total = math.fsum(detail["log_probabilities"])
        assert total == pytest.approx(best["log_probability"], rel=1e-4)
        assert detail["pieces"] == best["pieces"]
    begun = use("translate", *prefix_of(tmp_path, toy.translate(lines[0])), stdin=lines)
    assert begun.lines[0].startswith(toy.translate(lines[0]))
    pairs = pair_flags(tmp_path, [(line, toy.translate(line)) for line in lines])
    translator = jaxformer.Translator(workdir)
    own = translator.score(lines, list(map(toy.translate, lines)))
    for each, line in zip(own, use("score", *pairs, "--json").lines, strict=False):
        assert each.log_probability == pytest.approx(
            json.loads(line)["log_probability"], rel=1e-5
        )
    assert translator.attention(lines[0], toy.translate(lines[0])).source[0] == TAG
    links = use("align", *pairs).lines
    tagged = [(f"{TAG} {line}", toy.translate(line)) for line in lines]
    with_tag = use("align", *pair_flags(tmp_path, tagged)).lines
    for line, own, other in zip(lines, links, with_tag, strict=True):
        ends = [[*map(int, link.split("-"))] for link in own.split()]
        assert 0 < len(ends) <= len(line.split())
        assert {s for s, _ in ends} <= {*range(len(line.split()))}
        others = [[*map(int, link.split("-"))] for link in other.split()]
        assert [[s + 1, t] for s, t in ends] == [each for each in others if each[0]]


def prefix_of(folder, text):
    (folder / "prefix").write_text(f"{text}\n" + "\n" * 4)
    return [f"--prefix={folder / 'prefix'}"]


def test_another_run_begins_with_it_or_with_its_files(
    command, toy, workdir, trained, tmp_path
):
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
    refused = [
        (flag + ",third", "data.tokenizer names 3 files; give one, or two"),
        (flag.replace("source.spm", "missing"), "missing cannot be read"),
        (
            f"--config.data.tokenizer={tmp_path}/target.spm,{tmp_path}/source.spm",
            f"the tokeniser has no piece '{TAG}'",
        ),
        (
            f"--config.data.tokenizer={trained.workdir}/tokenizer.model",
            "one vocabulary of the languages, and data.shared_vocabulary is False; "
            "set it to True",
        ),
        (
            "--config.model.tied_embeddings=all",
            "is all and data.shared_vocabulary False",
        ),
        (
            f"--init_from={trained.workdir}",
            "has model.tied_embeddings='all', and this config says 'target'",
        ),
    ]
    new = tmp_path / "new"
    for other_flag, said in refused:
        answer = command("prepare", *toy.flags, *FLAGS, other_flag, workdir=new)
        assert said in answer.complaint
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
        assert run_program(program_of(folder), given) == ours
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
