"""What Hugging Face's Marian and M2M-100 compute, in a process without JAX.

The fixture `transformers` calls the functions by name. A process of the test suite with
both PyTorch and JAX once ended without a message.
"""

import functools
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers

transformers.utils.logging.disable_progress_bar()


def call(item: tuple[str, tuple, dict]) -> Any:
    """Call a function of this module: its name, its arguments."""
    name, arguments, named = item
    return globals()[name](*arguments, **named)


@functools.lru_cache(maxsize=1)
def model_of(folder: Path) -> transformers.PreTrainedModel:
    """Load a checkpoint."""
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()


@functools.lru_cache(maxsize=1)
def tokenizer_of(folder: Path) -> transformers.PreTrainedTokenizerBase:
    """Load the tokeniser of a checkpoint."""
    return transformers.AutoTokenizer.from_pretrained(folder)


def log_probabilities(
    folder: Path,
    source: np.ndarray,
    segments: np.ndarray,
    target: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """Compute log P [B, T, len(rows)] of the pieces `rows` after each target piece."""
    source, segments, target = (
        torch.tensor(ids).long() for ids in (source, segments, target)
    )
    with torch.inference_mode():
        found = model_of(folder)(
            input_ids=source, attention_mask=segments, decoder_input_ids=target
        )
    return found.logits[..., rows].log_softmax(-1).numpy()


def generate(
    folder: Path, source: np.ndarray, segments: np.ndarray, **how: Any
) -> np.ndarray:
    """Search; the result begins with the piece that starts the decoder."""
    source, segments = torch.tensor(source).long(), torch.tensor(segments).long()
    found = model_of(folder).generate(source, attention_mask=segments, **how)
    return found.numpy()


def translate(
    folder: Path, text: Sequence[str], source: str = "", **how: Any
) -> list[str]:
    """Translate sentences; `source` is their language's code."""
    tokenizer = tokenizer_of(folder)
    if source:
        tokenizer.src_lang = source
    batch = tokenizer(list(text), return_tensors="pt", padding=True)
    found = model_of(folder).generate(**batch, **how)
    return tokenizer.batch_decode(found, skip_special_tokens=True)


def generation_config(folder: Path) -> dict[str, Any]:
    """Return the settings of its search."""
    return model_of(folder).generation_config.to_dict()


def save_in_half(folder: Path, copy: Path, **how: Any) -> None:
    """Save a checkpoint in bfloat16."""
    half = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="bfloat16")
    half.save_pretrained(copy, **how)


def save_with_torch(folder: Path, copy: Path) -> None:
    """Save the tensors of a checkpoint in two files of PyTorch, in bfloat16."""
    tensors = [*model_of(folder).state_dict().items()]
    for part in range(2):
        own = {name: tensor.to(torch.bfloat16) for name, tensor in tensors[part::2]}
        torch.save(own, copy / f"pytorch_model-{part + 1}.bin")


def sinusoids(folder: Path) -> np.ndarray:
    """Return the table of positions, which older checkpoints of M2M-100 have."""
    return model_of(folder).model.encoder.embed_positions.weights.numpy()


def tokenizer_facts(folder: Path) -> dict[str, Any]:
    """Return the tokeniser's class, size and reserved ids."""
    found = tokenizer_of(folder)
    names = "pad", "unk", "bos", "eos"
    return {
        "class": type(found).__name__,
        "size": len(found),
        "reserved": [getattr(found, f"{name}_token_id") for name in names],
    }


def encode(
    folder: Path, text: Sequence[str], side: str = "text", language: str = ""
) -> list[list[int]]:
    """Encode sentences; `side` is "text" or "text_target", `language` their code."""
    tokenizer = tokenizer_of(folder)
    if language:
        tokenizer.src_lang = language
    return tokenizer(**{side: list(text)})["input_ids"]


def best(folder: Path, text: str, language: str, **how: Any) -> tuple[list[int], float]:
    """Search the best translation of a sentence; return its ids and its score."""
    source = torch.tensor(encode(folder, [text], language=language))
    found = model_of(folder).generate(
        source, return_dict_in_generate=True, output_scores=True, **how
    )
    return found.sequences[0].tolist(), found.sequences_scores[0].item()


def add_language(folder: Path, copy: Path, token: str) -> dict[str, int]:
    """Save the tokeniser of a checkpoint with another language; return all ids."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    added = {"additional_special_tokens": [token]}
    tokenizer.add_special_tokens(added, replace_extra_special_tokens=True)
    tokenizer.save_pretrained(copy)
    return tokenizer.get_vocab()


def decode(folder: Path, ids: Sequence[int]) -> str:
    """Decode a translation, without reserved pieces."""
    return tokenizer_of(folder).decode(ids, skip_special_tokens=True)


def make_published(
    folder: Path, sources: Sequence[str], targets: Sequence[str]
) -> None:
    """Write a checkpoint as published ones are, for these languages.

    It has two SentencePiece models and ids of its own: EOS is 0, unknown 1, and the
    padding that the decoder starts with is last. No parameter is zero.
    """
    folder.mkdir()
    pieces = {">>deu<<"}
    for name, sentences in (("source", sources), ("target", targets)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=model, vocab_size=60,
            model_type="unigram", normalization_rule_name="nmt_nfkc",
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        (folder / f"{name}.spm").write_bytes(model.getvalue())
        known = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces |= set(known.id_to_piece(list(range(3, len(known)))))
    names = ["</s>", "<unk>", *sorted(pieces, reverse=True), "<pad>"]
    vocabulary = {piece: index for index, piece in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    languages = {"source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(languages))
    sizes = {"layers": 2, "ffn_dim": 24, "attention_heads": 2}
    values = {f"{s}_{k}": v for k, v in sizes.items() for s in ("encoder", "decoder")}
    values |= dict.fromkeys(("eos_token_id", "forced_eos_token_id"), 0)
    values |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), len(names) - 1)
    config = transformers.MarianConfig(
        vocab_size=len(names), d_model=16, max_position_embeddings=64,
        activation_function="swish", scale_embedding=True, **values,
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    generator = torch.Generator().manual_seed(0)
    learnt = {**dict(model.named_parameters()), "bias": model.final_logits_bias}
    with torch.no_grad():
        for name, parameter in learnt.items():
            if "embed_positions" not in name:
                noise = torch.randn(parameter.shape, generator=generator)
                is_scale = name.endswith("layer_norm.weight")
                parameter.copy_(is_scale + 0.4 * noise)
    model.save_pretrained(folder)


def make_m2m100(folder: Path, sentences: Sequence[str], *, is_nllb: bool) -> None:
    """Write a checkpoint with the tokeniser of M2M-100, or with that of NLLB-200.

    It knows English and German, and vocab_size is larger than its vocabulary.
    """
    folder.mkdir()
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=file, vocab_size=120,
        model_type="bpe", normalization_rule_name="nmt_nfkc", hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    (folder / "sentencepiece.bpe.model").write_bytes(file.getvalue())
    known = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    learnt = known.id_to_piece(list(range(3, len(known))))
    names = ["<s>", "<pad>", "</s>", "<unk>", *learnt]
    if is_nllb:
        _write_nllb(folder, names, known, file.getvalue())
    else:
        vocabulary = {piece: index for index, piece in enumerate(names)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        settings = {"tokenizer_class": "M2M100Tokenizer", "src_lang": "en"}
        languages = transformers.models.m2m_100.tokenization_m2m_100
        codes = languages.FAIRSEQ_LANGUAGE_CODES["m2m100"]
        settings["additional_special_tokens"] = [f"__{code}__" for code in codes]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        names += codes
    sizes = {"layers": 2, "ffn_dim": 24, "attention_heads": 2, "layerdrop": 0.0}
    values = {f"{s}_{k}": v for k, v in sizes.items() for s in ("encoder", "decoder")}
    config = transformers.M2M100Config(
        vocab_size=len(names) + 8, d_model=16, max_position_embeddings=64, **values
    )
    model = transformers.M2M100ForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = name.endswith("layer_norm.weight")
            parameter.copy_(is_scale + 0.4 * noise)
        end = model.model.shared.weight[config.eos_token_id]
        model.model.decoder.layer_norm.bias += 1.5 * end  # so that translations end
    model.save_pretrained(folder)


def _write_nllb(
    folder: Path,
    names: list[str],
    known: sentencepiece.SentencePieceProcessor,
    content: bytes,
) -> None:
    """Write tokenizer.json, whose merges are those of the SentencePiece model."""
    ids = {piece: index for index, piece in enumerate(names)}
    score = {piece: known.get_score(known.piece_to_id(piece)) for piece in names[4:]}
    merges = [
        (-score[piece], piece[:cut], piece[cut:])
        for piece in names[4:]
        for cut in range(1, len(piece))
        if piece[:cut] in score and piece[cut:] in score
    ]
    charsmap = _field(_field(content, 3), 2)  # of NormalizerSpec in ModelProto
    tokenizer = transformers.NllbTokenizer(
        vocab=ids,
        merges=[(left, right) for _, left, right in sorted(merges)],
        _spm_precompiled_charsmap=charsmap,
        additional_special_tokens=["eng_Latn", "deu_Latn"],
        src_lang="eng_Latn",
    )
    tokenizer.save_pretrained(folder)
    names += ["eng_Latn", "deu_Latn", "<mask>"]


def _field(message: bytes, wanted: int) -> bytes:
    """Return a field of bytes of a Protocol Buffers message."""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    at = 0
    while True:
        key = varint()
        number, kind = key >> 3, key & 7
        size = varint() if kind in (0, 2) else {1: 8, 5: 4}[kind]
        if kind == 2 and number == wanted:
            return message[at : at + size]
        at += size if kind else 0
