"""Contestants that translate text with the model of a workdir, from lines to lines."""

from collections.abc import Callable, Sequence
from pathlib import Path

from jaxformer.batch import EOS
from jaxformer.commands.runs import Run, make_translator
from jaxformer.export.ctranslate2 import write_ctranslate2
from jaxformer.training.sharding import copy_to, local_mesh
from jaxformer.workdir import direction

TranslateLines = Callable[[Sequence[str]], list[str]]
CT2_BATCH = 2048  # source tokens, as fast as any other from 512 on


def our_translator(run: Run, params: dict) -> TranslateLines:
    """Translate as `--mode=translate` does; programs are compiled when first needed."""
    mesh = local_mesh()
    return make_translator(run, mesh, copy_to(mesh, params))


def ctranslate2_translator(
    run: Run, params: dict, *, folder: Path, quantization: str, threads: int
) -> TranslateLines:
    """Translate as users of CTranslate2 do: its own length penalty, one hypothesis."""
    import ctranslate2

    folder.mkdir()
    decoding = run.config["decoding"]
    write_ctranslate2(
        folder, run.model.config, params, quantization=quantization,
        direction=direction(run.config), tokenizer=run.tokenizer,
        longest=run.config["data"]["max_length"], decoding=decoding,
    )  # fmt: skip
    translator = ctranslate2.Translator(
        str(folder), device="cpu", intra_threads=threads, compute_type=quantization
    )
    pieces = run.tokenizer.pieces()
    ids = {piece: i for i, piece in enumerate(pieces)}

    def translate_lines(lines: Sequence[str]) -> list[str]:
        sources = [
            [pieces[i] for i in sequence[:-1]]
            for sequence in run.tokenizer.encode(lines)
        ]
        found = translator.translate_batch(
            sources,
            max_batch_size=CT2_BATCH,
            batch_type="tokens",
            beam_size=decoding["beam_size"],
            length_penalty=decoding["alpha"],
            max_decoding_length=max(map(len, sources)) + decoding["extra_length"],
            disable_unk=True,
        )
        return [
            run.tokenizer.decode([*(ids[piece] for piece in each.hypotheses[0]), EOS])
            for each in found
        ]

    return translate_lines
