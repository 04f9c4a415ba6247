"""What Hugging Face's Marian computes, in a process without JAX.

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
def model_of(folder: Path) -> transformers.MarianMTModel:
    """Load a checkpoint."""
    return transformers.MarianMTModel.from_pretrained(folder).eval()


@functools.lru_cache(maxsize=1)
def tokenizer_of(folder: Path) -> transformers.MarianTokenizer:
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


def translate(folder: Path, text: Sequence[str], **how: Any) -> list[str]:
    """Translate sentences."""
    tokenizer = tokenizer_of(folder)
    batch = tokenizer(list(text), return_tensors="pt", padding=True)
    found = model_of(folder).generate(**batch, **how)
    return tokenizer.batch_decode(found, skip_special_tokens=True)


def generation_config(folder: Path) -> dict[str, Any]:
    """Return the settings of its search."""
    return model_of(folder).generation_config.to_dict()


def save_in_half(folder: Path, copy: Path, **how: Any) -> None:
    """Save a checkpoint in bfloat16."""
    half = transformers.MarianMTModel.from_pretrained(folder, dtype="bfloat16")
    half.save_pretrained(copy, **how)


def tokenizer_facts(folder: Path) -> dict[str, Any]:
    """Return the tokeniser's class, size and reserved ids."""
    found = tokenizer_of(folder)
    names = "pad", "unk", "bos", "eos"
    return {
        "class": type(found).__name__,
        "size": len(found),
        "reserved": [getattr(found, f"{name}_token_id") for name in names],
    }


def encode(folder: Path, text: Sequence[str], side: str = "text") -> list[list[int]]:
    """Encode sentences; `side` is "text" or "text_target"."""
    return tokenizer_of(folder)(**{side: list(text)})["input_ids"]


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
