"""The vocabulary: reserved ids, faithful text, the same bytes every time."""

import hashlib
import io
import logging
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.data.tokenizer import (
    JointTokenizer,
    Tokenizer,
    normalise,
    pack_tokenizer,
    train_tokenizer,
)
from jaxformer.errors import InputError

TEXT = [
    "A man in a blue shirt is standing on a ladder .",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter .",
    "Two dogs are running , “quickly” 1½ km … H₂O, 100 ºC!",
    "Zwei Hunde laufen über die größte Straße; „schnell“.",
    "他说：“你好，世界！”",  # noqa: RUF001
    "p < q > r / x@@y ⁇",
]
ALPHABET = "".join(sorted(set("".join(TEXT))))


def train(path, sentences=TEXT, **settings):
    defaults = {
        "vocab_size": 200,
        "character_coverage": 1.0,
        "max_sentences": 1000,
        "seed": 0,
    }
    return train_tokenizer(sentences, path, **{**defaults, **settings})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model")


def test_a_sequence_is_pieces_and_eos(tokenizer):
    for ids in tokenizer.encode(TEXT):
        assert ids[-1] == EOS
        assert len(ids) > 1
        assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])
        assert max(ids) < tokenizer.vocab_size


def test_a_blank_sentence_is_eos_alone(tokenizer):
    assert tokenizer.encode(["", "  \t", "\u2028\u00a0"]) == [[EOS]] * 3
    assert tokenizer.decode([EOS]) == tokenizer.decode([]) == ""


@given(st.text(ALPHABET + "\t\n\x00\x85\u00a0\u2028\u3000▁"))
def test_decoding_gives_back_the_normalised_text(tokenizer, text):
    ids = tokenizer.encode([text])[0]
    assert tokenizer.decode(ids) == normalise(text)


@given(st.text())
def test_a_normalised_text_is_one_line_and_stays(text):
    once = normalise(text)
    assert normalise(once) == once
    assert len(once.splitlines()) <= 1
    assert once.strip() == once


def test_normalising_changes_no_character_that_is_read():
    text = "½ … H₂O 你好，世界！ ﬁn"  # noqa: RUF001
    assert normalise(text) == text


def test_separators_become_one_space_and_characters_are_composed():
    assert normalise(" a\u2028b\x85\u00a0c\x00d▁e ") == "a b c d e"
    assert normalise("Ma\u0308nner") == "Männer"


def test_decoding_stops_at_eos_and_skips_padding(tokenizer):
    ids = tokenizer.encode(["A man is running ."])[0]
    other = tokenizer.encode(["Zwei Hunde"])[0]
    row = np.array([BOS, *ids, *other, PAD, PAD], np.int32)
    assert tokenizer.decode(row) == "A man is running ."
    assert tokenizer.decode([PAD, *ids[:-1], PAD]) == "A man is running ."


def test_a_character_outside_the_vocabulary_is_unknown(tokenizer):
    ids = tokenizer.encode(["Ω man"])[0]
    assert ids.count(UNK) == 1
    assert tokenizer.decode(ids) == "⁇ man"


def test_the_names_of_reserved_ids_are_text_like_any_other(tokenizer):
    text = "q <s> x </s> <unk> <pad> p"
    ids = tokenizer.encode([text])[0]
    assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])
    assert tokenizer.decode(ids) == text


def test_many_sentences_are_encoded_as_each_alone(tokenizer):
    assert tokenizer.encode(TEXT * 3) == [tokenizer.encode([t])[0] for t in TEXT * 3]


def test_the_same_text_gives_the_same_bytes_in_another_process(tmp_path):
    """The sample included: SentencePiece's own differs from process to process."""
    script = (
        "from jaxformer.data.tokenizer import *; from pathlib import Path; import sys\n"
        "lines = [f'{i} dogs of {i * i % 89} men' for i in range(1000)]\n"
        "train_tokenizer(lines, Path(sys.argv[1]), vocab_size=60,"
        " character_coverage=1.0, max_sentences=50, seed=3)"
    )
    first, second = tmp_path / "first", tmp_path / "second"
    subprocess.run([sys.executable, "-c", script, first], check=True)
    lines = [f"{i} dogs of {i * i % 89} men" for i in range(1000)]
    settings = {"vocab_size": 60, "max_sentences": 50}
    train(second, lines, seed=3, **settings)
    assert first.read_bytes() == second.read_bytes()
    train(second, lines, seed=4, **settings)
    assert first.read_bytes() != second.read_bytes()


def test_a_sample_is_drawn_from_the_whole_text(tmp_path):
    """Of "a a a" x 500 then "b b b" x 500, fifty sentences hold both letters."""
    lines = ["a a a"] * 500 + ["b b b"] * 500
    drawn = train(tmp_path / "m", lines, max_sentences=50)
    assert UNK not in drawn.encode(["a b"])[0]


def test_the_hash_is_that_of_the_file(tmp_path):
    path = tmp_path / "tokenizer.model"
    trained = train(path)
    assert trained.hash == hashlib.sha256(path.read_bytes()).hexdigest()
    loaded = Tokenizer.load(path)
    assert loaded.hash == trained.hash
    assert loaded.encode(TEXT) == trained.encode(TEXT)


def test_a_vocabulary_beyond_the_text_is_reduced_with_a_message(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        small = train(tmp_path / "m", ["ab ab", "abc"], vocab_size=5000)
    # 4 reserved, 4 characters of "▁abc" and its 6 longer stretches.
    assert small.vocab_size == 14
    assert "vocab_size 5000 is more than the text supports" in caplog.text
    assert "14 ids" in caplog.text


def test_a_vocabulary_below_the_alphabet_says_what_is_needed(tmp_path):
    with pytest.raises(InputError, match=r"vocab_size 6 is too small.* need 8;"):
        train(tmp_path / "m", ["ab ab", "abc"], vocab_size=6)
    assert not (tmp_path / "m").exists()


def test_rare_characters_can_be_left_out(tmp_path):
    text = ["abc " * 100] * 50 + ["Ω"]
    assert UNK not in train(tmp_path / "m", text).encode(["Ω"])[0]
    assert UNK in train(tmp_path / "m", text, character_coverage=0.999).encode(["Ω"])[0]


def test_no_text_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no sentence"):
        train(tmp_path / "m", ["", " \u2028 "])


def test_an_error_of_the_text_is_not_hidden(tmp_path):
    def sentences():
        yield "a man"
        raise InputError("train.en, line 2: not UTF-8")

    with pytest.raises(InputError, match=r"train\.en, line 2"):
        train(tmp_path / "m", sentences())


def test_training_is_quiet(tmp_path, capfd):
    train(tmp_path / "m")
    assert capfd.readouterr() == ("", "")


def test_files_that_are_no_tokenizer_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read.*No such file"):
        Tokenizer.load(tmp_path / "absent.model")
    (tmp_path / "text.model").write_text("not a model")
    with pytest.raises(InputError, match="not a SentencePiece model"):
        Tokenizer.load(tmp_path / "text.model")
    (tmp_path / "foreign.model").write_bytes(foreign_model(TEXT, 150))
    with pytest.raises(InputError, match="reserved ids"):
        Tokenizer.load(tmp_path / "foreign.model")


# --- of a published model: two SentencePiece models, one vocabulary -------------------


def foreign_model(sentences, size):
    """A model whose reserved ids are SentencePiece's own: UNK 0, <s> 1, </s> 2."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        model_type="bpe",
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(model):
    known = sentencepiece.SentencePieceProcessor(model_proto=model)
    return known.id_to_piece(list(range(3, len(known))))


ENGLISH, GERMAN = foreign_model(TEXT[::2], 60), foreign_model(TEXT[1::2], 60)
PIECES = [
    "<pad>", "<unk>", "<s>", "</s>", ">>deu<<",
    *sorted({*pieces_of(ENGLISH), *pieces_of(GERMAN)} - {"▁Hunde"}),
]  # fmt: skip


@pytest.fixture
def joint(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(pack_tokenizer(ENGLISH, GERMAN, PIECES))
    return Tokenizer.load(path)


def test_either_language_is_cut_by_its_own_model(joint):
    source, target = TEXT[0], TEXT[1]
    for encode, model, sentence in (
        (joint.encode, ENGLISH, source),
        (joint.encode_target, GERMAN, target),
    ):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        (ids,) = encode([sentence])
        assert [PIECES[i] for i in ids[:-1]] == processor.encode(sentence, out_type=str)
        assert ids[-1] == EOS
        assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])
        assert joint.decode([BOS, *ids, PAD]) == sentence
    assert joint.encode([target]) != joint.encode_target([target])
    assert (
        joint.encode(["", " \t"]) == joint.encode_target(["", "\u2028"]) == [[EOS]] * 2
    )


def test_a_piece_outside_the_vocabulary_is_unknown(joint):
    (ids,) = joint.encode_target(["Zwei Ω laufen"])
    assert ids.count(UNK) == 1
    assert joint.decode(ids) == "Zwei ⁇ laufen"


def test_a_language_code_before_a_sentence_is_one_piece(joint):
    code = PIECES.index(">>deu<<")
    plain, with_code = joint.encode(["A man", ">>deu<< A man"])
    assert with_code == [code, *plain]
    for text in (">>fra<< A man", "A >>deu<< man"):  # unknown; not in front
        assert code not in joint.encode([text])[0]


def test_the_pieces_and_their_number_are_those_of_the_vocabulary(joint):
    assert isinstance(joint, JointTokenizer)
    assert joint.pieces() == PIECES
    assert joint.vocab_size == len(PIECES)
    assert (joint.source_model, joint.target_model) == (ENGLISH, GERMAN)


def test_the_hash_covers_all_three_parts(joint):
    packed = pack_tokenizer(ENGLISH, GERMAN, PIECES)
    assert packed == pack_tokenizer(ENGLISH, GERMAN, PIECES)
    others = [
        pack_tokenizer(GERMAN, GERMAN, PIECES),
        pack_tokenizer(ENGLISH, ENGLISH, PIECES),
        pack_tokenizer(ENGLISH, GERMAN, PIECES[::-1]),
    ]
    hashes = {JointTokenizer(each).hash for each in (packed, *others)}
    assert joint.hash in hashes
    assert len(hashes) == 4


def test_a_model_trained_here_is_packed_as_it_is(tokenizer):
    model = tokenizer.source_model
    assert pack_tokenizer(model, model, tokenizer.pieces()) == model
    other_order = tokenizer.pieces()[:4] + tokenizer.pieces()[:3:-1]
    assert pack_tokenizer(model, model, other_order) != model


def test_ours_cut_both_languages_alike(tokenizer):
    assert tokenizer.encode_target(TEXT) == tokenizer.encode(TEXT)


def test_what_is_no_model_is_not_packed():
    with pytest.raises(InputError, match=r"target\.spm is not a SentencePiece"):
        pack_tokenizer(ENGLISH, b"text", PIECES)


@pytest.mark.parametrize("keep", [60, -40])
def test_a_damaged_pack_is_refused(tmp_path, keep):
    packed = pack_tokenizer(ENGLISH, GERMAN, PIECES)
    (tmp_path / "m").write_bytes(packed[:keep])
    with pytest.raises(InputError, match=r"is damaged .* put the original back"):
        Tokenizer.load(tmp_path / "m")
