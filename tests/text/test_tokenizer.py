"""Tests of tokenisers: reserved ids, faithful text, the same bytes every time."""

import hashlib
import io
import json
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.system.errors import InputError
from jaxformer.system.stopping import interrupts
from jaxformer.text.given_tokenizer import load_given, require_usable
from jaxformer.text.lines import normalise
from jaxformer.text.tokenizer import Tokenizer, pack_tokenizer, pair_of
from jaxformer.text.vocabulary import Sample, VocabularySamples, train_tokenizer
from jaxformer.tokens import BOS, EOS, PAD, UNK

RESERVED = {PAD, UNK, BOS, EOS}
TEXT = [
    "A man in a blue shirt is standing on a ladder .",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter .",
    "Two dogs are running , “quickly” 1½ km … H₂O, 100 ºC!",
    "Zwei Hunde laufen über die größte Straße; „schnell“.",
    "他说：“你好，世界！”",  # noqa: RUF001
    "p < q > r / x@@y ⁇",
]
ALPHABET = "".join(sorted(set("".join(TEXT))))


def train(path, sentences=TEXT, **changes):
    values = {
        "vocab_size": 200, "character_coverage": 1.0, "vocab_sentences": 1000,
        "seed": 0, "tags": [], "user_defined_symbols": (), "model_type": "bpe",
        "byte_fallback": False,
    }  # fmt: skip
    config = SimpleNamespace(**values | changes)
    sample, sentences = Sample(config.vocab_sentences, config.seed), [*sentences]
    sample.add(np.arange(len(sentences), dtype=np.uint64), sentences)
    tokenizer = train_tokenizer(sample.texts, config)
    path.write_bytes(tokenizer.source_model)
    return tokenizer


def test_ctrl_c_interrupts_the_training_of_a_vocabulary(tmp_path, monkeypatch):
    """SentencePiece would report an exception in its iterator as a RuntimeError."""
    end, main = threading.Event(), threading.main_thread().ident

    def run_long(**_):
        signal.pthread_kill(main, signal.SIGINT)
        end.wait(60)

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", run_long)
    with pytest.raises(KeyboardInterrupt), interrupts():
        train(tmp_path / "tokenizer.model")
    end.set()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model")


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A published model's tokeniser, of two SentencePiece models and one vocabulary."""
    folder = tmp_path_factory.mktemp("marian")
    sides = [train(folder / str(n), TEXT[n::2], vocab_size=60) for n in (0, 1)]
    pieces = {*chain(*(side.pieces()[4:] for side in sides))} - {"▁Hunde"}
    pieces = ["<pad>", "<unk>", "<s>", "</s>", ">>deu<<", *sorted(pieces)]
    packed = pack_tokenizer(*(side.source_model for side in sides), pieces)
    (folder / "tokenizer.model").write_bytes(packed)
    return Tokenizer.load(folder / "tokenizer.model")


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("½ … H₂O 你好，世界！ ﬁn", "½ … H₂O 你好，世界！ ﬁn"),  # noqa: RUF001
        (" a\u2028b\x85\u00a0c\x00d▁e ", "a b c d e"),
        ("Ma\u0308nner", "Männer"),
        ("a\u200b \ufeff b", "a\u200b \ufeff b"),
        *[(text, "") for text in ("\u200b", "\ufeff \u200d\u00a0\u2066", "\u00ad\x00")],
    ],
)
def test_normalising_changes_only_spaces_and_composition(text, normalised):
    assert normalise(text) == normalised


@given(st.text())
def test_a_normalised_text_is_one_line_and_stays(text):
    once = normalise(text)
    assert normalise(once) == once.strip() == once
    assert len(once.splitlines()) <= 1


@given(st.text(ALPHABET + "\t\n\x00\x85\u00a0\u2028\u3000▁"))
def test_decoding_gives_back_the_normalised_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode([text])[0]) == normalise(text)


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.model"
    return train(path, vocab_size=400, byte_fallback=True, character_coverage=0.98)


@given(st.text() | st.text(ALPHABET + "<0xF>😀"))
def test_with_bytes_every_text_is_known_and_given_back(of_bytes, text):
    (ids,) = of_bytes.encode([text])
    assert UNK not in ids
    assert not of_bytes.is_unknown(ids)
    assert of_bytes.decode(ids) == normalise(text)
    assert pair_of(*[of_bytes.content] * 2).encode_target([text]) == [ids]


def test_bytes_that_are_no_text_are_replacement_characters(of_bytes):
    first, second, man = (of_bytes.pieces().index(p) for p in ("<0xF0>", "<0x9F>", "a"))
    assert of_bytes.decode([first, second, man, EOS]) == "\ufffd\ufffda"


def test_a_sequence_is_pieces_and_eos(tokenizer):
    sequences = tokenizer.encode(TEXT * 3)
    assert sequences == [tokenizer.encode([text])[0] for text in TEXT * 3]
    assert sequences == tokenizer.encode_target(TEXT * 3)
    for ids in sequences:
        assert ids[-1] == EOS
        assert {*ids[:-1]} <= {*range(tokenizer.vocab_size)} - RESERVED
    assert tokenizer.encode(["", "  \t", "\u2028\u00a0"]) == [[EOS]] * 3
    assert tokenizer.decode([EOS]) == tokenizer.decode([]) == ""


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("A man is running .", "A man is running ."),
        ("Ω man", "⁇ man"),
        ("q <s> x </s> <unk> <pad> p", "q <s> x </s> <unk> <pad> p"),  # no reserved ids
    ],
)
def test_decoding_stops_at_eos_and_skips_padding(tokenizer, text, decoded):
    ids, other = tokenizer.encode([text, "Zwei Hunde"])
    assert RESERVED & {*ids[:-1]} == ({UNK} if "⁇" in decoded else set())
    row = np.array([PAD, BOS, *ids, *other, PAD, PAD], np.int32)
    assert tokenizer.decode(row) == decoded


# Training


TRAIN = """
import sys
from pathlib import Path
from tests.text.test_tokenizer import SAMPLE, train
train(Path(sys.argv[1]), sys.stdin, seed=3, **SAMPLE)
"""
SAMPLE = {"vocab_size": 60, "vocab_sentences": 50}


def test_a_sample_of_the_text_gives_the_same_bytes_in_another_process(tmp_path):
    """SentencePiece's own sample differs from process to process."""
    lines = [f"{i} {'dogs' if i < 500 else 'men'}" for i in range(1000)]
    first, second = tmp_path / "first", tmp_path / "second"
    command = [sys.executable, "-c", TRAIN, first]
    done = subprocess.run(
        command, input="\n".join(lines), text=True, check=True, capture_output=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    drawn = train(second, lines, seed=3, **SAMPLE)
    assert first.read_bytes() == second.read_bytes()
    assert drawn.hash == hashlib.sha256(second.read_bytes()).hexdigest()
    assert Tokenizer.load(second).encode(lines) == drawn.encode(lines)
    assert UNK not in drawn.encode(["dogs men"])[0]
    assert train(second, lines, seed=4, **SAMPLE).hash != drawn.hash


def test_samples_of_parts_are_the_sample_of_all_text():
    """Each text is drawn with equal chance, whatever is added first."""
    texts = [f"text {i}" if i % 3 else " " for i in range(4000)]
    places = np.arange(4000, dtype=np.uint64)
    whole, parts, other = Sample(500, 1), Sample(500, 1), Sample(500, 2)
    whole.add(places, texts)
    other.add(places, texts)
    for part in np.split(np.random.default_rng(0).permutation(4000), 80):
        one = Sample(500, 1)
        one.add(places[part], [texts[i] for i in part])
        assert len(one.texts) <= 500
        parts.add_drawn(one.drawn)
        assert len(parts.drawn) <= 1000
    drawn = [int(text.split()[1]) for text in whole.texts]
    assert parts.texts == whole.texts
    assert len(drawn) == 500 == len({*drawn})
    assert drawn == sorted(drawn)
    assert len({*other.texts} & {*whole.texts}) < 200  # 500 of 2,667 each: 94 expected
    assert abs(np.mean(drawn) - 2000) < 200


@pytest.mark.parametrize("seed", range(8))
def test_sources_and_targets_are_drawn_each_by_itself_and_without_tags(seed):
    """Also where a part of the text expects its share of the sample alone."""
    config = SimpleNamespace(
        character_coverage=1.0, user_defined_symbols=(), vocab_sentences=50,
        seed=seed, shared_vocabulary=True,
    )  # fmt: skip
    samples = VocabularySamples(config, (200, 200))
    samples.add(0, [(f">>b<< s{n}", f"t{n}") for n in range(200)], ">>b<<")
    drawn = samples.samples[0].texts
    sources, targets = ({t[1:] for t in drawn if t[0] == side} for side in "st")
    assert len(drawn) == 50 == len(sources) + len(targets)
    assert len(sources & targets) < 15  # 3 are expected


@pytest.mark.parametrize("shared", [True, False])
def test_a_size_beyond_the_text_is_reduced(config, caplog, shared):
    """For each of two: a target of 14 ids, 4 reserved and 10 of "▁abc"."""
    config = replace(config, vocab_size=5000, shared_vocabulary=shared)
    samples = VocabularySamples(config)
    samples.add(0, [("ab ab", "abc")], "")
    assert samples.train().largest_vocab_size == 14
    large = "data.vocab_size=5000 is too large for the "
    suit = "ids; docs/model_size.md says how many suit it"
    expected = [f"{large}text, which gets 14 {suit}"]
    if not shared:
        expected = [
            f"{large}source text, which gets 10 {suit}",
            f"{large}target text, which gets 14 {suit}",
        ]
    assert caplog.messages == expected


@pytest.mark.parametrize(("coverage", "is_unknown"), [(1.0, False), (0.999, True)])
def test_rare_characters_can_be_left_out(tmp_path, coverage, is_unknown):
    text = ["abc " * 100] * 50 + ["Ω"]
    tokenizer = train(tmp_path / "m", text, character_coverage=coverage)
    assert (UNK in tokenizer.encode(["Ω"])[0]) == is_unknown


def test_long_sentences_train_the_vocabulary(tmp_path):
    """SentencePiece would leave out those of more than 4,192 bytes."""
    tokenizer = train(tmp_path / "m", ["a b c", "жук " * 1000])
    assert UNK not in tokenizer.encode(["жук"])[0]


def test_very_long_words_do_not_train_the_vocabulary(tmp_path):
    """SentencePiece fails on them."""
    found = [
        train(tmp_path / "m", text, model_type="unigram", vocab_size=150).content
        for text in (TEXT, [*TEXT, "Ω" * 100_000])
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"character_coverage": 0.9}, "is 0.9; a vocabulary is trained with 0.98 to 1"),
        ({"user_defined_symbols": ("</s>",)}, "has '</s>'; use texts without .*</s>$"),
        ({"user_defined_symbols": ("<ph 1/>",)}, "such as '<ph_1/>', and write them"),
        ({"user_defined_symbols": ("two men",)}, "has 'two men'; use texts without"),
        ({"user_defined_symbols": ("",)}, "has ''; use texts"),
    ],
)
def test_keys_that_train_no_vocabulary_are_refused_before_the_text_is_read(
    changes, said
):
    """They are no mistake where a tokeniser is given."""
    values = {"character_coverage": 1.0, "user_defined_symbols": ()} | changes
    with pytest.raises(InputError, match=said):
        VocabularySamples(SimpleNamespace(**values))


def test_a_symbol_may_also_be_a_tag(tmp_path):
    given = {"user_defined_symbols": (">>de<<", "N"), "tags": [">>de<<"]}
    assert train(tmp_path / "m", **given).pieces().count(">>de<<") == 1


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (["ab ab", "abc"], r"vocab_size 6 is too small.* need 8;"),
        (["", " \u2028 "], "no sentence"),
    ],
)
def test_text_that_makes_no_vocabulary_is_refused(tmp_path, sentences, message):
    with pytest.raises(InputError, match=message):
        train(tmp_path / "m", sentences, vocab_size=6)
    assert not (tmp_path / "m").exists()


# A published model's tokeniser


@pytest.mark.parametrize("side", [0, 1])
def test_each_language_is_encoded_by_its_own_model(marian, side):
    encode = (marian.encode, marian.encode_target)[side]
    model = (marian.source_model, marian.target_model)[side]
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    (*ids, last), blank = encode([TEXT[side], " \t"])
    pieces = [marian.pieces()[i] for i in ids]
    assert pieces == processor.encode(TEXT[side], out_type=str)
    assert (last, blank) == (EOS, [EOS])
    assert {*ids} <= {*range(marian.vocab_size)} - RESERVED
    assert marian.decode([PAD, BOS, *ids, EOS, PAD]) == TEXT[side]


def test_codes_of_languages_and_unknown_pieces(marian):
    (ids,) = marian.encode_target(["Zwei Ω laufen"])
    assert marian.decode(ids) == "Zwei ⁇ laufen"
    plain, known, *others = marian.encode(
        ["A man", ">>deu<< A man", ">>fra<< A man", "A >>deu<< man"]
    )
    assert known == [marian.pieces().index(">>deu<<"), *plain]
    assert known[0] not in [*others[0], *others[1]]  # unknown; not in front


def test_the_hash_covers_all_three_parts_and_no_date(marian):
    source, target, pieces = marian.source_model, marian.target_model, marian.pieces()
    packed = io.BytesIO(pack_tokenizer(source, target, pieces))
    members = zipfile.ZipFile(packed).infolist()
    assert {member.date_time for member in members} == {(1980, 1, 1, 0, 0, 0)}
    parts = [(target, target, pieces), (source, source, pieces)]
    parts += [(source, target, pieces), (source, target, pieces[::-1])]
    hashes = [Tokenizer(pack_tokenizer(*each)).hash for each in parts]
    assert len({*hashes}) == 4
    assert marian.hash == hashes[2]


def test_a_model_trained_here_is_packed_as_it_is(tokenizer, marian):
    model, pieces = tokenizer.source_model, tokenizer.pieces()
    assert pack_tokenizer(model, model, pieces) == model
    assert pack_tokenizer(model, model, pieces[:4] + pieces[:3:-1]) != model
    assert pack_tokenizer(model, marian.target_model, pieces) != model


def test_two_vocabularies_have_ids_of_their_own(marian):
    """Those of the models, or of two vocabularies, as an imported model may have."""
    models = [marian.source_model, marian.target_model]
    sides = [*map(Tokenizer, models)]
    own = pair_of(*models)
    orders = [[*side.pieces()[:4], *side.pieces()[:3:-1]] for side in sides]
    renumbered = Tokenizer(pack_tokenizer(*models, *orders))
    assert (own.renumbers, renumbered.renumbers) == (False, True)
    for pair, names in ((own, [s.pieces() for s in sides]), (renumbered, orders)):
        assert [pair.source_pieces(), pair.pieces()] == names
        assert [pair.source_vocab_size, pair.vocab_size] == [*map(len, names)]
        assert not pair.is_shared
        encoded = pair.encode(TEXT[:1])[0], pair.encode_target(TEXT[1:2])[0]
        for ids, own_names, side, text in zip(
            encoded, names, sides, TEXT, strict=False
        ):
            expected = [side.pieces()[i] for i in side.encode([text])[0]]
            assert [own_names[i] for i in ids] == expected
        assert pair.decode(encoded[1]) == TEXT[1]
    assert pack_tokenizer(*models, *(s.pieces() for s in sides)) == own.content
    few = Tokenizer(pack_tokenizer(*models, orders[0], orders[1][:9]))
    assert (few.vocab_size, few.largest_vocab_size) == (9, len(orders[0]))
    same = pair_of(models[0], models[0])
    assert (same.is_shared, same.hash == own.hash) == (False, False)


def test_two_given_models_name_their_first_pieces_alike(monkeypatch):
    """An export has one name of each."""
    sides = ("<pad> <unk> <s> </s> a", "[PAD] [UNK] <s> </s> b")
    found = iter([SimpleNamespace(pieces=side.split) for side in sides])
    monkeypatch.setattr(Tokenizer, "load", lambda _: next(found))
    data = SimpleNamespace(tokenizer="a.spm,b.spm", shared_vocabulary=False)
    said = r"of a.spm are <pad> <unk> <s> </s>, and of b.spm \[PAD\] \[UNK\] <s> </s>; "
    with pytest.raises(InputError, match=said):
        load_given(data)


@pytest.mark.parametrize("end", [60, -40])
def test_a_damaged_file_is_refused(tmp_path, marian, end):
    with pytest.raises(InputError, match=r"cannot be read.*No such file"):
        Tokenizer.load(tmp_path / "m")
    packed = pack_tokenizer(marian.source_model, marian.target_model, marian.pieces())
    (tmp_path / "m").write_bytes(packed[:end])
    with pytest.raises(InputError, match="m is damaged or not a SentencePiece model"):
        Tokenizer.load(tmp_path / "m")


WRONG = "5", "null", "{}", "[]", "[1,2,3,4,5]", '[["a"],2,3,4,5]', "[" * 100_000


@pytest.mark.parametrize("vocabulary", [*WRONG, r'["<", "a", "b", "c", "\ud800"]'])
def test_a_zip_with_another_vocabulary_is_refused(tmp_path, marian, vocabulary):
    write_zip(tmp_path / "m", marian, vocabulary, zipfile.ZIP_STORED)
    with pytest.raises(InputError, match="m is damaged or not a SentencePiece model"):
        Tokenizer.load(tmp_path / "m")


def write_zip(path, tokenizer, vocabulary, compression):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("source.spm", tokenizer.source_model)
        archive.writestr("target.spm", tokenizer.target_model)
        archive.writestr("vocabulary.json", vocabulary)


def test_no_tokeniser_fills_the_memory(tmp_path, marian, monkeypatch):
    """Neither by what a zip unpacks nor by its own size."""
    bomb = json.dumps(["<pad>", "<unk>", "<s>", "</s>", "a" * 10**7])
    write_zip(tmp_path / "m", marian, bomb, zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match=r"source\.spm in it is compressed"):
        Tokenizer.load(tmp_path / "m")
    monkeypatch.setattr("jaxformer.text.tokenizer._MOST_BYTES", 99)
    with pytest.raises(InputError, match="it has more than 99 bytes"):
        Tokenizer.load(tmp_path / "m")


def test_symbols_of_the_user_are_never_split(tmp_path):
    text = ["I paid __NUM__ on __DATE__ .", "x__NUM__y"]
    given = {"user_defined_symbols": ("__NUM__", "__DATE__"), "tags": [">>de<<"]}
    symbols = train(tmp_path / "m", [*TEXT, *text], **given)
    pieces = [symbols.pieces()[i] for i in symbols.encode(text)[0]]
    assert {"__NUM__", "__DATE__"} <= {*pieces}
    assert [symbols.decode(ids) for ids in symbols.encode(text)] == text
    tagged = symbols.encode([f">>de<< {text[0]}", ">>de<<", ">>fr<< a"])
    assert tagged[0][1:] == symbols.encode(text)[0]
    assert symbols.pieces()[tagged[0][0]] == ">>de<<"
    assert len(tagged[1]) == 2
    assert symbols.language_code(">>fr<< a") == ""
    lines = ["☃", ">>de<< ☃ ☃☃\ufe0f", ">>de<<", "", ">>de<< \u200b", "☃ I", ">>fr<<"]
    unknown = [*map(symbols.is_unknown, symbols.encode(lines))]
    assert unknown == [True, True, *[False] * 5]


# A user's own SentencePiece model

IDS = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}


def own_model(**changes):
    """Train a model by SentencePiece itself, with what jaxformer needs or `changes`."""
    model, identity = io.BytesIO(), {"normalization_rule_name": "identity"}
    options = {"vocab_size": 90, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model,
        **options | IDS | identity | changes,
    )  # fmt: skip
    return Tokenizer(model.getvalue())


@pytest.mark.parametrize("changes", [{}, {"byte_fallback": True, "vocab_size": 400}])
def test_a_users_model_is_used_if_it_is_not_larger_than_the_config_says(
    tmp_path, changes
):
    own = own_model(**changes)
    require_usable(own, tmp_path / "m", own.vocab_size + 1)
    assert own.decode(own.encode(TEXT)[2]) == TEXT[2]
    said = f"set data.vocab_size={own.vocab_size}, or remove the file"
    with pytest.raises(InputError, match=said):
        require_usable(own, tmp_path / "m", own.vocab_size - 1)


def test_the_space_behind_a_tag_is_no_piece():
    symbols = {"user_defined_symbols": [">>de<<"], "remove_extra_whitespaces": False}
    own = own_model(**symbols)
    assert own.encode([f">>de<< {TEXT[2]}"]) == own.encode([f">>de<<{TEXT[2]}"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}, "--pad_id=0 --unk_id"),
        ({"normalization_rule_name": "nmt_nfkc"}, "--normalization_rule_name=identity"),
        ({"add_dummy_prefix": False}, "changes characters or the spaces"),
        ({"treat_whitespace_as_suffix": True}, "changes characters or the spaces"),
    ],
)
def test_a_users_model_needs_our_ids_and_no_normalisation(tmp_path, changes, said):
    own = own_model(**changes)
    with pytest.raises(InputError, match=said):
        require_usable(own, tmp_path / "m", own.vocab_size)
