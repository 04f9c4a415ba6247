"""CTranslate2 as a contestant: the same parameters, by `jaxformer.export`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.ours import Numbers
from benchmarks.peers.sizes import Decode, Sizes
from jaxformer.batch import EOS
from jaxformer.export.ctranslate2 import write_ctranslate2
from jaxformer.models.sequence_model import Model


def ctranslate2(
    model: Model,
    params: dict,
    sizes: Sizes,
    *,
    folder: Path,
    quantization: str,
    threads: int,
) -> Callable[[int], Decode]:
    """Load the model; gives a contestant, as `ours` is, of each beam size.

    All sentences are one batch and all threads work on it. Its translations have as
    many tokens as are asked for, and no EOS.
    """
    import ctranslate2 as package

    folder.mkdir()
    tokenizer = Numbers(sizes.vocabulary)
    write_ctranslate2(
        folder, model.config, params, quantization=quantization, direction="en-de",
        tokenizer=tokenizer, longest=sizes.source,
        decoding={"beam_size": 4, "alpha": 0.6, "extra_length": 1},
    )  # fmt: skip
    translator = package.Translator(
        str(folder), device="cpu", intra_threads=threads, compute_type=quantization
    )

    def of(beam_size: int) -> Decode:
        def decode(sources: Sequence[Sequence[int]]) -> list[list[int]]:
            found = translator.translate_batch(
                [list(map(str, source)) for source in sources],
                beam_size=beam_size,
                min_decoding_length=sizes.target,
                max_decoding_length=sizes.target,
            )
            # What is not a number is a reserved piece.
            return [
                [int(token) if token.isdigit() else EOS for token in each.hypotheses[0]]
                for each in found
            ]

        return decode

    return of
