"""Compare the speed of decoding with CTranslate2, Hugging Face and Marian.

    python benchmarks/decode.py [--quick] [--repeats=7] [--threads=2] [--dtype=float32]
        [--workdir=DIR --text=SOURCE [--reference=FILE]] [--only=ours,HF,...]

The model is the paper's base model with random parameters: 32 sentences of 20 tokens,
translations of exactly 30, by greedy search and with a beam of 4; --layers, --d_model,
--d_ff, --num_heads, --vocabulary, --rows, --source and --target change the sizes. With
--workdir and --text it is a trained model on real text of mixed lengths, from lines to
lines. The first turn of each is not counted; that of real text is reported as "first
time". --threads are those of a peer, by default one a core. Packages that are not
installed are left out, and named. All contestants run on the GPU if there is one.
--dtype=bfloat16 is ours, and Hugging Face's: CTranslate2 takes those of QUANTIZED that
it has for the device. --only names contestants: "ours", "CTranslate2", "HF", "Marian",
on CPUs and not with --workdir, "HF compiled", whose steps torch.compile compiles, which
takes a minute, "ours with SSRU" in place of the decoder's self-attention, and "export",
with --workdir on CPUs: `jaxformer.Translator` of exports for CTranslate2.
"""

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# JAX would reserve most of the GPU's memory, which the peers need as well.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from benchmarks import harness
from benchmarks.models import Sizes, device_name, draw_parameters, make_translator
from benchmarks.peers import decoding as peers
from benchmarks.peers import marian
from jaxformer import Translator, export
from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.runs.run import open_run, read_parameters
from jaxformer.system.allocator import keep_memory
from jaxformer.system.errors import InputError
from jaxformer.text.lines import read_lines
from jaxformer.tokens import EOS

OURS, CT2, HF, HF_COMPILED = "ours", "CTranslate2", "HF", "HF compiled"
MARIAN, SSRU, EXPORT = "Marian", "ours with SSRU", "export"
# CTranslate2's types by device; ratios are to the first.
QUANTIZED = {
    "cpu": ("float32", "int8", "int16", "bfloat16"),
    "cuda": ("float16",),
}
BEAMS = {"beam 4": 4, "greedy": 1}
SIZES = Sizes(source=20, target=30)
SIZE_FLAGS = {name: value for name, value in vars(SIZES).items() if type(value) is int}
CT2_BATCH = 2048  # source tokens; from 512 on the speed is the same


def quantized() -> dict[str, str]:
    """The types that CTranslate2 has for this device, by contestant."""
    from ctranslate2 import get_supported_compute_types

    supported = get_supported_compute_types(device_name())
    kinds = [kind for kind in QUANTIZED[device_name()] if kind in supported]
    return {f"{CT2} {kind}": kind for kind in kinds}


def beside() -> str:
    """The contestant that ratios are to."""
    return f"{CT2} {QUANTIZED[device_name()][0]}"


def both(
    model: peers.Model,
    decoding: dict,
    folder: Path,
    options: argparse.Namespace,
    **search: object,
) -> dict[str, peers.Translate]:
    """Make our translator, and if installed CTranslate2's with options `search`."""
    found = {OURS: make_translator(*model, decoding)}
    if CT2 in options.only and harness.has("ctranslate2"):
        search["beam_size"] = decoding["beam_size"]
        for name, kind in quantized().items():
            peer = peers.ctranslate2(
                folder / kind, model, kind, options.threads, decoding
            )
            found[name] = functools.partial(peer, **search)
    return found


def compare(
    translators: dict[str, peers.Translate], lines: list[str], repeats: int
) -> tuple[harness.Rounds, dict[str, list[str]]]:
    """Time translations of lines; returns the rounds and the last translations."""
    outputs: dict[str, list[str]] = {}
    turns = {
        name: lambda name=name, each=each: outputs.update({name: each(lines)})
        for name, each in translators.items()
    }
    return harness.take_turns(turns, repeats), outputs


def same_as_ours(outputs: dict[str, list[str]], name: str, words: int | None) -> float:
    """Return the share of lines whose first words, all if `words` is None, are ours."""
    pairs = zip(outputs[OURS], outputs[name], strict=True)
    same = [a.split()[:words] == b.split()[:words] for a, b in pairs]
    return sum(same) / len(same)


def forced_length(options: argparse.Namespace, folder: Path) -> dict:
    """Time translations of exactly `target` tokens."""
    changes = {name: getattr(options, name) for name in SIZE_FLAGS}
    sizes = dataclasses.replace(SIZES, **changes, dtype=options.dtype)
    model, tokenizer = sizes.model(dropout=0.0), peers.Numbers(sizes.vocabulary)
    ours, found = (model, draw_parameters(model), tokenizer), {}
    lines = [tokenizer.decode(ids) for ids in sizes.sentences(sizes.source, 1)]
    exact = {
        "min_decoding_length": sizes.target, "max_decoding_length": sizes.target,
        "suppress_sequences": [[piece] for piece in tokenizer.pieces()[:EOS]],
    }  # fmt: skip
    for search, beam_size in BEAMS.items():
        decoding = {
            "beam_size": beam_size, "alpha": 0.6, "batch_tokens": 4096,
            "extra_length": sizes.target - sizes.source, "min_length": sizes.target,
        }  # fmt: skip
        translators = both(ours, decoding, folder / search, options, **exact)
        for name in (HF, HF_COMPILED):
            if name in options.only and harness.has("torch", "transformers"):
                translators[name] = peers.huggingface(
                    sizes, beam_size, options.threads, compiled=name == HF_COMPILED
                )
        if SSRU in options.only:
            other = sizes.model(dropout=0.0, decoder_self_attention="ssru")
            given = other, draw_parameters(other), tokenizer
            translators[SSRU] = make_translator(*given, decoding)
        is_cpu = device_name() == "cpu"
        if MARIAN in options.only and is_cpu and marian.is_installed():
            translators[MARIAN] = marian.marian_translator(
                folder / search / MARIAN, sizes, beam_size, options.threads
            )
        _, outputs = compare(translators, lines, 1)  # not counted
        for name, output in outputs.items():
            # EOS, which only we write at the end, is among our tokens.
            lengths = {len(line.split()) + (name in (OURS, SSRU)) for line in output}
            if lengths != {sizes.target}:
                raise RuntimeError(f"{name} made translations of {lengths} tokens")
        rounds, _ = compare(translators, lines, options.repeats)
        tokens = dict.fromkeys(translators, sizes.rows * sizes.target)
        first = beside() if beside() in translators else OURS
        found[search] = harness.figures(rounds, tokens, first)
        for name in outputs:
            if name.startswith(CT2):  # others have parameters of their own
                same = same_as_ours(outputs, name, sizes.target - 1)
                found[search][name]["same_as_ours"] = same
    harness.print_figures(found, "target tokens", first, {})
    return found


def real_text(options: argparse.Namespace, folder: Path) -> dict:
    """Time translations of a file with a trained model, beam 4."""
    run = open_run(options.workdir, dtype=options.dtype)
    decoding = vars(run.config.decoding) | {"beam_size": 4}
    model = run.model, read_parameters(run, None), run.tokenizer
    translators = both(
        model, decoding, folder, options,
        max_batch_size=CT2_BATCH, batch_type="tokens", length_penalty=decoding["alpha"],
        disable_unk=True,
    )  # fmt: skip
    if EXPORT in options.only and device_name() == "cpu":
        for kind in quantized().values():
            to = folder / f"export-{kind}"
            export(options.workdir, to, format="ctranslate2", quantization=kind)
            how = {"beam_size": 4, "split_sentences": False}
            translators[f"{EXPORT} {kind}"] = Translator(to, **how)
    lines, found = list(read_lines(options.text)), {}
    amounts = dict.fromkeys(translators, len(lines))
    for label, repeats in (("first time", 1), ("again", options.repeats)):
        rounds, outputs = compare(translators, lines, repeats)
        found[label] = harness.figures(rounds, amounts, beside())
    harness.print_figures(found, "sentences", beside(), {})
    data = run.config.data
    languages = {
        "source_language": data.source_language,
        "target_language": data.target_language,
    }
    for name, output in outputs.items():
        each = {"same_as_ours": same_as_ours(outputs, name, None)}
        if options.reference:
            references = list(read_lines(options.reference))
            each["bleu"] = corpus_scores(output, references, **languages).bleu
        print(name, each)
        found["again"][name] |= each
    return {"sentences": len(lines), **found}


def measure(options: argparse.Namespace) -> dict:
    keep_memory()  # as our commands do
    if (options.workdir is None) != (options.text is None):
        raise InputError("--workdir and --text go together: give both, or neither")
    with tempfile.TemporaryDirectory(prefix="jaxformer-decode-") as name:
        if options.text is None:
            return {"forced": forced_length(options, Path(name))}
        return {"text": real_text(options, Path(name))}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(7, 1), dtype=("float32", "bfloat16"),
    threads=len(os.sched_getaffinity(0)), workdir=None, text=None, reference=None,
    only=[OURS, CT2, HF, MARIAN], **SIZE_FLAGS,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
