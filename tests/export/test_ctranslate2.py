"""CTranslate2 computes what we compute, from what the export wrote."""

import json
import re
import sys
import unicodedata
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.decoding.scorer import search_translations
from jaxformer.decoding.search import SearchOptions
from jaxformer.errors import InputError
from jaxformer.export.ctranslate2 import write_ctranslate2
from jaxformer.export.ctranslate2_readme import readme

ctranslate2 = pytest.importorskip(
    "ctranslate2", reason="CTranslate2 is not installed: extra `export`"
)
EXTRA_LENGTH = 50  # pieces of a translation beyond those of its source
TOLERANCE = 1e-4  # of a piece's log-probability
VARIANTS = {
    "paper": {},
    "one layer": {"encoder_layers": 1},
    "three layers": {"decoder_layers": 3},
    "learned positions": {"positions": "learned"},
    "pre-norm": {"norm_first": True},
    "small heads": {"d_k": 4, "d_v": 4},  # of which d_model has more than there are
    "large heads": {"d_k": 12, "d_v": 12},
    "small keys": {"d_k": 3},
    "small values": {"d_v": 3},
    "published": {
        "attention_bias": True, "logits_bias": True, "activation": "swish",
        "layer_norm_epsilon": 1e-5,
    },
    "published, small keys": {"attention_bias": True, "d_k": 3},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def export(tmp_path, words):
    """Write a model; returns the folder."""

    def write(model, params, *, quantization="float32", tokenizer=words):
        folder = tmp_path / quantization
        folder.mkdir()
        decoding = {"beam_size": 4, "alpha": 0.6, "extra_length": EXTRA_LENGTH}
        write_ctranslate2(
            folder, model.config, params, quantization=quantization, direction="en-de",
            tokenizer=tokenizer, longest=12, decoding=decoding,
        )  # fmt: skip
        return folder

    return write


@pytest.fixture(scope="module")
def pairs(words, sentences):
    """Ids of sources and of targets, which are none of their translations."""
    sequences = words.encode(sentences)
    return sequences, sequences[::-1]


def padded(sequences):
    ids = np.zeros((len(sequences), max(map(len, sequences))), np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    return jnp.asarray(ids)


def our_log_probabilities(model, params, pairs):
    """Log P of each piece of each target, EOS included."""
    source, target = map(padded, pairs)
    segments = [(ids != 0).astype(jnp.int32) for ids in (source, target)]
    batch = Batch(source, target, *segments)
    logits = jax.jit(lambda p: model.logits(p, batch))(params)
    found = np.asarray(jax.nn.log_softmax(logits))
    return [
        found[row, np.arange(len(sequence)), sequence]
        for row, sequence in enumerate(pairs[1])
    ]


def their_log_probabilities(folder, pairs):
    """The same by CTranslate2."""
    pieces = json.loads((folder / "shared_vocabulary.json").read_text())
    # EOS is theirs to add, on both sides.
    sides = [[[pieces[i] for i in ids[:-1]] for ids in side] for side in pairs]
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    return [found.log_probs for found in translator.score_batch(*sides)]


def largest_difference(ours, theirs):
    return max(
        np.abs(np.subtract(mine, yours)).max()
        for mine, yours in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_log_probabilities_are_ours(make_model, export, pairs, variant):
    model, params = make_model(**VARIANTS[variant])
    ours = our_log_probabilities(model, params, pairs)
    theirs = their_log_probabilities(export(model, params), pairs)
    assert largest_difference(ours, theirs) < TOLERANCE
    assert np.std(np.concatenate(ours)) > 1  # they are sharp


def test_long_sentences(make_model, export, words):
    """The position table goes on where a sentence does."""
    model, params = make_model()
    draw = np.random.default_rng(2)
    pairs = [words.encode([" ".join(draw.choice(words.pieces()[4:], 300))])] * 2
    ours = our_log_probabilities(model, params, pairs)
    assert largest_difference(ours, their_log_probabilities(
        export(model, params), pairs)) < TOLERANCE  # fmt: skip


def test_epsilon_is_heeded(make_model, export, pairs):
    """Another one in config.json would be seen."""
    model, params = make_model(layer_norm_epsilon=1e-3)
    ours = our_log_probabilities(model, params, pairs)
    folder = export(model, params)
    assert largest_difference(ours, their_log_probabilities(folder, pairs)) < TOLERANCE
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_epsilon": 0}))
    assert largest_difference(ours, their_log_probabilities(folder, pairs)) > TOLERANCE


@pytest.mark.parametrize("beam_size", [1, 3])
def test_searches_find_the_same(make_model, export, words, sentences, beam_size):
    """Greedy, and beam search where lengths are not penalised."""
    model, params = make_model()
    options = SearchOptions(beam_size=beam_size, alpha=0.0)
    search = jax.jit(
        lambda params, source: search_translations(
            [model], [params], source, options=options, extra_length=EXTRA_LENGTH
        )
    )
    best = np.asarray(search(params, padded(words.encode(sentences))).tokens)[:, 0]
    ours = [words.decode(tokens) for tokens in best]
    found = ctranslate2.Translator(str(export(model, params))).translate_batch(
        [sentence.split() for sentence in sentences],
        beam_size=beam_size, length_penalty=0, min_decoding_length=0,
        max_decoding_length=12 + EXTRA_LENGTH, disable_unk=True,
        suppress_sequences=[["<pad>"], ["<s>"]],
    )  # fmt: skip
    limits = [len(sentence.split()) + EXTRA_LENGTH for sentence in sentences]
    theirs = [
        " ".join(each.hypotheses[0][:limit])
        for each, limit in zip(found, limits, strict=True)
    ]
    assert theirs == ours
    lengths = {len(translation.split()) for translation in ours}
    assert len(lengths) > 5  # they end by themselves


@pytest.mark.parametrize(
    ("quantization", "tolerance"),
    [
        ("float16", 0.01), ("bfloat16", 0.05), ("int16", 0.6), ("int8", 0.6),
        ("int8_float32", 0.6), ("int8_float16", 0.6), ("int8_bfloat16", 0.6),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # of PyTorch, as the package imports it
def test_quantized_models_are_near(make_model, export, pairs, quantization, tolerance):
    """They load on a CPU, take less room, and the run's parameters stay as they are.

    A model so small and sharp suffers more from few bits than a trained one, and on
    many a CPU int16 becomes int8.
    """
    if "bfloat16" in quantization:
        pytest.importorskip("torch", reason="PyTorch is not installed: extra `torch`")
    model, params = make_model()
    before = jax.tree.map(np.copy, params)
    whole, small = export(model, params), export(
        model, params, quantization=quantization
    )  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, params, before)
    sizes = [(folder / "model.bin").stat().st_size for folder in (whole, small)]
    assert sizes[1] < sizes[0]
    ours = our_log_probabilities(model, params, pairs)
    theirs = their_log_probabilities(small, pairs)
    apart = np.abs(np.concatenate(ours) - np.concatenate(theirs))
    assert np.mean(apart) < tolerance


def test_learned_positions_end(make_model, export):
    """CTranslate2 says so itself."""
    model, params = make_model(positions="learned", max_positions=9)
    translator = ctranslate2.Translator(str(export(model, params)))
    for length, fits in ((8, True), (9, False)):  # and EOS
        source = [["w5"] * length]
        if fits:
            translator.translate_batch(source, max_decoding_length=9)
        else:
            with pytest.raises(RuntimeError, match="position"):
                translator.translate_batch(source, max_decoding_length=9)


def test_what_has_no_place_is_named(make_model, export):
    model, params = make_model()
    params["encoder"]["layer_1"]["gate"] = {"kernel": np.ones((2, 2))}
    with pytest.raises(InputError, match=r"encoder/layer_1/gate/kernel.*--format"):
        export(model, params)


def test_restricted_attention_is_refused(make_model, export):
    with pytest.raises(InputError, match=r"attention_window=9\); .*--format"):
        export(*make_model(attention_window=9))


def test_unknown_quantization(make_model, export):
    with pytest.raises(InputError, match=r"--quantization=int3.*float16"):
        export(*make_model(), quantization="int3")


def test_two_sentencepiece_models_are_two_files(make_model, export, words):
    class Two(type(words)):
        source_model, target_model = b"of the source", b"of the target"

    folder = export(*make_model(), tokenizer=Two())
    assert (folder / "source.spm").read_bytes() == b"of the source"
    assert (folder / "target.spm").read_bytes() == b"of the target"
    assert "`source.spm` and `target.spm`" in (folder / "README.md").read_text()


@pytest.fixture
def readme_of(words):
    """Write a README for a model with these pieces besides the words."""

    def write(*pieces, dtype="float32"):
        return readme(
            direction="en-fr", quantization="int8", version="4", positions=9, longest=9,
            pieces=[*words.pieces(), *pieces], files={"source": "a", "target": "b"},
            decoding={"beam_size": 4, "alpha": 0.6, "extra_length": 50, "other": 1},
            dtype=dtype,
        )  # fmt: skip

    return write


def test_readme_knows_languages_only_where_there_are_several(readme_of):
    assert "LANGUAGES" not in readme_of()
    text = readme_of(">>fra<<")
    assert 'startswith(">>")' in text
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    cut = program[program.index("def normalise") : program.index("def penalised")]
    tokenizer = mock.Mock(encode=lambda text, out_type: text.split())
    names = {
        "re": re, "unicodedata": unicodedata, "source_tokenizer": tokenizer,
        "LANGUAGES": {">>fra<<"},
    }  # fmt: skip
    exec(cut, names)
    assert names["pieces_of"](" >>fra<<  a b") == [">>fra<<", "a", "b"]
    assert names["pieces_of"](">>deu<< a") == [">>deu<<", "a"]  # as any other word


def test_readme_warns_of_bfloat16(readme_of):
    assert "bfloat16" not in readme_of()
    assert "activations in bfloat16" in readme_of(dtype="bfloat16")


def test_package_may_be_missing(make_model, export):
    model, params = make_model()
    with (
        mock.patch.dict(sys.modules, {"ctranslate2": None}),
        pytest.raises(InputError, match=r"pip install 'jaxformer\[export\]'"),
    ):
        export(model, params)


def test_package_is_imported_only_when_it_is_used():
    assert ctranslate2 not in vars(sys.modules[write_ctranslate2.__module__]).values()
