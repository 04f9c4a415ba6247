"""The README beside a model exported for CTranslate2: how to call it as we search."""

from collections.abc import Sequence

from jaxformer.batch import BOS, EOS, PAD

_TEXT = """\
# {direction}, for CTranslate2

A Transformer trained with jaxformer, its weights in {quantization}: `model.bin`,
`config.json` and `shared_vocabulary.json`, written with CTranslate2 {version}, and the
tokeniser, {tokenizer}. `pip install ctranslate2 sentencepiece`, and, in this
directory, as `translate.py`:

```python
{imports}import re
import sys
import unicodedata

import ctranslate2
import sentencepiece

BEAM_SIZE, ALPHA, EXTRA_LENGTH = {beam_size}, {alpha}, {extra_length}
END = "{eos}"
# Finished hypotheses among which the length penalty chooses, if there is one.
HYPOTHESES = 1 if BEAM_SIZE == 1 or ALPHA == 0 else 2 * BEAM_SIZE

translator = ctranslate2.Translator(".", device="cpu")
source_tokenizer = sentencepiece.SentencePieceProcessor("{source}")
target_tokenizer = sentencepiece.SentencePieceProcessor("{target}")
{languages}

def normalise(text):
    "NFC, single spaces, no control characters: the text of training."
    text = unicodedata.normalize("NFC", text)
    return re.sub(r"[\\s\\x00-\\x1f\\x7f-\\x9f\\u2581]+", " ", text).strip(" ")


def pieces_of(text):
    "What the model reads of a sentence."
    text = normalise(text)
{cut}


def penalised(log_probability, pieces):
    "log P / ((5 + n) / 6)^alpha, where n counts the end of sentence."
    return log_probability / ((5 + len(pieces)) / 6) ** ALPHA


def best_of(found, limit):
    "The best of those that end within `limit` pieces; if none does, of all, cut."
    ranked = []
    for score, pieces in zip(found.scores, found.hypotheses):
        ends = pieces[-1:] == [END] and len(pieces) <= limit + 1
        ranked.append((ends, penalised(score, pieces), pieces))
    *_, best = max(ranked)
    return [piece for piece in best[:limit] if piece != END]


def translate(sentences):
    "Translate each sentence; a blank one stays blank."
    sources = list(map(pieces_of, sentences))
    spoken = [i for i, source in enumerate(sources) if source]
    results = translator.translate_batch(
        [sources[i] for i in spoken],
        max_batch_size=4096,
        batch_type="tokens",
        beam_size=BEAM_SIZE,
        patience=max(1, HYPOTHESES / BEAM_SIZE),
        num_hypotheses=HYPOTHESES,
        length_penalty=0,
        return_scores=True,
        return_end_token=True,
        min_decoding_length=0,
        max_decoding_length=max(map(len, sources), default=1) + EXTRA_LENGTH,
        max_input_length=0,
        disable_unk=True,
        suppress_sequences=[["{pad}"], ["{bos}"]],
    )
    translations = [""] * len(sources)
    for i, found in zip(spoken, results):
        best = best_of(found, len(sources[i]) + EXTRA_LENGTH)
        translations[i] = normalise(target_tokenizer.decode(best))
    return translations


if __name__ == "__main__":
    print(*translate(sys.stdin), sep="\\n")
```

Then `python translate.py < source.txt` does what jaxformer's `--mode=translate` does:

- Padding, unknown and beginning of sentence stand for no text: CTranslate2 is told not
  to produce them. An empty translation is allowed (`min_decoding_length`). CTranslate2
  ends the source by itself (`add_source_eos` in `config.json`).
- No source is cut (`max_input_length`), and the model has {positions:,} positions. But
  it learned from lines of up to {longest:,} pieces: cut longer ones into sentences, as
  jaxformer does.
- The length penalty of the paper is ((5 + n) / 6)^alpha, that of CTranslate2
  n^length_penalty; n counts the end of sentence in both. So here CTranslate2 returns
  log-probabilities, of two beams of hypotheses, and `penalised` ranks them. With
  beam_size 1 or alpha 0 one is enough. Where speed counts more than sameness, ask for
  one and choose a `length_penalty`; jaxformer has it as `--length_penalty=power`.
"""

_CUT = "    return source_tokenizer.encode(text, out_type=str)"
# Of a model whose source may begin with the language wanted, such as ">>deu<<".
_LANGUAGES = """\
with open("shared_vocabulary.json", encoding="utf-8") as file:
    LANGUAGES = {piece for piece in json.load(file) if piece.startswith(">>")}
"""
_CUT_LANGUAGE = """\
    code = re.match(">>[^<]*<<", text)
    language = [code[0]] if code and code[0] in LANGUAGES else []
    text = text.removeprefix("".join(language))
    return language + source_tokenizer.encode(text, out_type=str)"""
_BFLOAT16 = """\
- jaxformer has this model's activations in bfloat16, CTranslate2 in the type that
  `compute_type` says: where two translations are about as good the choice may differ.
"""


def readme(
    *,
    direction: str,
    quantization: str,
    version: str,
    positions: int,
    longest: int,
    pieces: Sequence[str],
    files: dict[str, str],
    decoding: dict,
    dtype: str,
) -> str:
    """Return its text in Markdown, with a program that translates as this run does.

    `positions` is how many pieces a sentence may have, `longest` how many it had in
    training, `pieces` are those of all ids, `files` names the SentencePiece models of
    "source" and "target", and `decoding` has `beam_size`, `alpha` and `extra_length`;
    `version` is of CTranslate2, `dtype` that of the run's activations.
    """
    has_languages = any(piece.startswith(">>") for piece in pieces)
    text = _TEXT.format(
        direction=direction,
        quantization=quantization,
        version=version,
        positions=positions,
        longest=longest,
        pad=pieces[PAD],
        bos=pieces[BOS],
        eos=pieces[EOS],
        tokenizer=" and ".join(f"`{name}`" for name in dict.fromkeys(files.values())),
        imports="import json\n" if has_languages else "",
        languages=_LANGUAGES if has_languages else "",
        cut=_CUT_LANGUAGE if has_languages else _CUT,
        **files,
        **{key: decoding[key] for key in ("beam_size", "alpha", "extra_length")},
    )
    return text + _BFLOAT16 if dtype == "bfloat16" else text
