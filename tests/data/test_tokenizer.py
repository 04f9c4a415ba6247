"""The vocabulary: reserved ids, faithful text, the same bytes every time."""

import hashlib
import logging
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.data.tokenizer import Tokenizer, normalise, train_tokenizer
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
    with open(tmp_path / "foreign.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT),
            model_writer=file,
            vocab_size=150,
            model_type="bpe",
            minloglevel=2,
        )
    with pytest.raises(InputError, match="reserved ids"):
        Tokenizer.load(tmp_path / "foreign.model")
