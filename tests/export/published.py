"""A checkpoint as published ones are: two SentencePiece models, ids of their own."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece


def make_published(folder: Path, sources: Sequence[str], targets: Sequence[str]) -> Any:
    """Write a checkpoint for these languages; returns Transformers' model.

    EOS is 0, unknown 1, and the padding that the decoder starts with comes last. No
    parameter is zero.
    """
    import torch
    import transformers

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
    return model.eval()
