"""How fast we decode beside CTranslate2 and Hugging Face, in one run on one machine.

    python benchmarks/decode.py [--quick] [--repeats=7] [--threads=2]
        [--workdir=DIR --text=SOURCE [--reference=FILE]]

First the paper's base model with random parameters, in float32 on CPU cores: 32
sentences of 20 tokens, translations of exactly 30, by greedy search and with a beam of
4. With --workdir and --text also a trained model on real text of mixed lengths, from
its lines to those of its translations. Prints a table of each, then the same as a line
of JSON. Contestants take turns, after one turn that is not counted; a ratio compares
two of the same round, so that a machine that slows down slows both. Packages that are
not installed are left out, and named.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxformer.commands.runs import open_run, read_parameters

from benchmarks.harness import figures, has, machine, print_table, row, take_turns
from benchmarks.peers.ct2 import ctranslate2
from benchmarks.peers.hf import huggingface
from benchmarks.peers.ours import ours
from benchmarks.peers.sizes import Decode, Sizes, random_model
from benchmarks.peers.text import ctranslate2_translator, our_translator
from jaxformer.data.sources import read_lines
from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.main import parse

OURS, CT2, CT2_INT8, HF = "ours", "CTranslate2 float32", "CTranslate2 int8", "HF"
BEAMS = {"beam 4": 4, "greedy": 1}
REPEATS, QUICK_REPEATS = 7, 1


def header(unit: str) -> tuple[str, ...]:
    """Names of the columns of `row`."""
    return "search", "who", "seconds, median", "spread", unit, f"times {CT2}"


# The base model, translations of one length -------------------------------------------


def forced_length(sizes: Sizes, options: argparse.Namespace, folder: Path) -> dict:
    """Time all contestants on the same sentences; tokens of translations a second."""
    model, params = random_model(sizes.config(), sizes.vocabulary)
    makers: dict[str, Callable[[int], Decode]] = {
        OURS: lambda beam_size: ours(model, params, sizes, beam_size)
    }
    if has("ctranslate2"):
        for name, kind in ((CT2, "float32"), (CT2_INT8, "int8")):
            makers[name] = ctranslate2(
                model, params, sizes, folder=folder / kind, quantization=kind,
                threads=options.threads,
            )  # fmt: skip
    if has("torch", "transformers"):
        makers[HF] = huggingface(sizes, threads=options.threads)
    sources, found, rows = sizes.sources(), {}, []
    for search, beam_size in BEAMS.items():
        contestants = {name: make(beam_size) for name, make in makers.items()}
        outputs = {  # of the turn that is not counted; HF, slow, compiles nothing
            name: decode(sources[:1] if options.quick and name == HF else sources)
            for name, decode in contestants.items()
        }
        for name, output in outputs.items():
            lengths = set(map(len, output))
            if lengths != {sizes.target}:
                raise RuntimeError(f"{name} made translations of {lengths} tokens")
        turns = {
            name: (lambda decode=decode: decode(sources))
            for name, decode in contestants.items()
        }
        rounds = take_turns(turns, options.repeats)
        tokens = sizes.sentences * sizes.target
        found[search] = {
            name: figures(rounds, name, tokens, beside=CT2) for name in turns
        }
        rows += [row(search, name, each) for name, each in found[search].items()]
    print_table(header("target tokens/s"), rows)
    if CT2 in outputs:  # of greedy search: the last token of ours is EOS
        pairs = zip(outputs[OURS], outputs[CT2], strict=True)
        same = sum(mine[:-1] == theirs[:-1] for mine, theirs in pairs)
        print(f"greedy: {same} of {len(sources)} are the same from {CT2}\n")
        found["greedy"][CT2]["same_as_ours"] = same / len(sources)
    return found


# A trained model, real text -----------------------------------------------------------


def real_text(options: argparse.Namespace, folder: Path) -> dict:
    """Time whole translations of a file; the first turn of each counts as cold."""
    run = open_run(
        parse(["", "--mode=translate", f"--workdir={options.workdir}", "--beam_size=4"])
    )
    params = read_parameters(run, None)
    lines = list(read_lines(options.text))
    contestants = {OURS: our_translator(run, params)}
    if has("ctranslate2"):
        for name, kind in ((CT2, "float32"), (CT2_INT8, "int8")):
            contestants[name] = ctranslate2_translator(
                run, params, folder=folder / f"text-{kind}", quantization=kind,
                threads=options.threads,
            )  # fmt: skip
    outputs = {}

    def turn(name: str) -> Callable[[], None]:
        return lambda: outputs.update({name: contestants[name](lines)})

    turns = {name: turn(name) for name in contestants}
    cold = take_turns(turns, 1)
    warm = take_turns(turns, options.repeats)
    found: dict = {"sentences": len(lines)}
    for label, rounds in (("first time", cold), ("again", warm)):
        found[label] = {
            name: figures(rounds, name, len(lines), beside=CT2) for name in turns
        }
    rows = [
        row(label, name, found[label][name])
        for label in ("first time", "again")
        for name in turns
    ]
    print_table(header("sentences/s"), rows)
    for name, output in outputs.items():
        same = sum(map(str.__eq__, output, outputs[OURS])) / len(lines)
        found["again"][name]["same_as_ours"] = same
        if options.reference:
            scores = corpus_scores(
                output,
                list(read_lines(options.reference)),
                source_language=run.config["data"]["source_language"],
                target_language=run.config["data"]["target_language"],
            )
            found["again"][name]["bleu"] = scores.bleu
            print(f"{name}: BLEU {scores.bleu:.2f}, {100 * same:.1f} % as ours")
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its outcome; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--repeats", type=int, help=f"rounds, by default {REPEATS}")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)),
        help="of each peer, by default as many as there are cores; ours takes all",
    )  # fmt: skip
    parser.add_argument("--workdir", type=Path, help="of a trained model")
    parser.add_argument("--text", type=Path, help="source sentences for it")
    parser.add_argument("--reference", type=Path, help="their translations, for BLEU")
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args(argv)
    if (options.workdir is None) != (options.text is None):
        parser.error("--workdir and --text go together: give both, or neither")
    if options.repeats is None:
        options.repeats = QUICK_REPEATS if options.quick else REPEATS
    sizes = Sizes(**{name: getattr(options, name) for name in vars(Sizes())})
    outcome: dict = {"machine": machine(), "repeats": options.repeats}
    print(json.dumps(outcome["machine"]), file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="jaxformer-decode-") as folder:
        outcome["forced"] = forced_length(sizes, options, Path(folder))
        if options.text is not None:
            outcome["text"] = real_text(options, Path(folder))
    print(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
