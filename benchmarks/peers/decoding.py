"""The peers of benchmarks/decode.py: functions from lines to translated lines."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from benchmarks.models import Sizes, device_name
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports.ctranslate2 import write_ctranslate2
from jaxformer.tokens import BOS, EOS, PAD

Translate = Callable[[Sequence[str]], list[str]]
Model = tuple[Any, dict, Any]  # a model, its parameters and its tokeniser


class Numbers:
    """A tokeniser whose sentences are numbers, each of which is an id."""

    source_model = target_model = b"no SentencePiece model"
    files: ClassVar[Mapping[str, bytes]] = {}
    target_start = ()

    def __init__(self, vocabulary: int) -> None:
        self.vocab_size = self.source_vocab_size = vocabulary

    def pieces(self) -> list[str]:
        """Name every id: the reserved ones, then the numbers."""
        words = map(str, range(EOS + 1, self.vocab_size))
        return ["<pad>", "<unk>", "<s>", "</s>", *words]

    def source_pieces(self) -> list[str]:
        """Name every id."""
        return self.pieces()

    def language_code(self, text: str) -> str:
        """No text begins with one."""
        return ""

    def for_target(self, tag: str) -> "Numbers":
        """No target has a tag."""
        return self

    def is_unknown(self, ids: Sequence[int]) -> bool:
        """No number is unknown."""
        return False

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Turn each sentence into ids, EOS last."""
        return [[*map(int, sentence.split()), EOS] for sentence in sentences]

    encode_target = encode

    def decode(self, ids: Sequence[int]) -> str:
        """Write the ids before EOS."""
        ids = list(ids)
        return " ".join(map(str, ids[: ids.index(EOS)]))


def ctranslate2(
    folder: Path, model: Model, quantization: str, threads: int, decoding: dict
) -> Callable[..., list[str]]:
    """Export a model into a new folder; options are those of `translate_batch`."""
    import ctranslate2 as package

    folder.mkdir(parents=True)
    network, params, tokenizer = model
    data = SimpleNamespace(
        direction="en-de",
        max_length=256,
        only_tag="",
        only_target_tag="",
        target_tags=[],
    )
    write_ctranslate2(
        folder, SimpleNamespace(model=network.config, data=data), params, tokenizer,
        TranslateOptions(**decoding), quantization=quantization,
    )  # fmt: skip
    translator = package.Translator(
        str(folder), device=device_name(), compute_type=quantization,
        intra_threads=threads,
    )  # fmt: skip
    pieces = tokenizer.pieces()
    ids = {piece: i for i, piece in enumerate(pieces)}

    def translate(lines: Sequence[str], **search: Any) -> list[str]:
        sources = [[pieces[i] for i in each[:-1]] for each in tokenizer.encode(lines)]
        limit = {"max_decoding_length": max(map(len, sources)) + 50}
        return [
            tokenizer.decode([*(ids[piece] for piece in found.hypotheses[0]), EOS])
            for found in translator.translate_batch(sources, **(limit | search))
        ]

    return translate


def huggingface(
    sizes: Sizes, beam_size: int, threads: int, *, compiled: bool
) -> Translate:
    """Translate with a MarianMTModel of these sizes and random parameters.

    Its attention has biases; nothing else differs in what is computed. If `compiled`,
    torch.compile compiles its steps, which have a cache of fixed size.
    """
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layers, heads, width = sizes.layers, sizes.num_heads, sizes.d_ff
    model = MarianMTModel(
        MarianConfig(
            vocab_size=sizes.vocabulary, d_model=sizes.d_model, encoder_layers=layers,
            decoder_layers=layers, encoder_attention_heads=heads,
            decoder_attention_heads=heads, encoder_ffn_dim=width, decoder_ffn_dim=width,
            activation_function="relu", scale_embedding=True, pad_token_id=PAD,
            max_position_embeddings=512, eos_token_id=EOS, decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    ).eval().to(device_name(), getattr(torch, sizes.dtype))  # fmt: skip
    how: dict[str, Any] = {}
    if compiled:  # `generate` by itself compiles greedy search alone
        how = {"cache_implementation": "static", "disable_compile": True}
        model.forward = torch.compile(model.forward, dynamic=False)

    def translate(lines: Sequence[str]) -> list[str]:
        ids = Numbers(sizes.vocabulary).encode(lines)
        ids = torch.tensor(ids, device=device_name())
        with torch.inference_mode():
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), num_beams=beam_size,
                do_sample=False, min_new_tokens=sizes.target,
                max_new_tokens=sizes.target, **how,
            )  # fmt: skip
        return [" ".join(map(str, each)) for each in found[:, 1:].tolist()]

    return translate
