"""Whether CTranslate2 says what we say, with a trained model on real text.

    python benchmarks/peers/parity.py --workdir=DIR --source=FILE --reference=FILE

exports the model and compares log-probabilities of the references, piece by piece, and
the translations by greedy search, with a beam of 4 without a length penalty, and with
the paper's. Theirs are made by the program in the exported README. Then BLEU of the
quantised models beside ours. Prints a line for each, then the same as a line of JSON;
the exit code is 0 if the issue's bounds hold, in TOLERANCE and below.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from jaxformer.commands.runs import Run, make_translator, open_run, read_parameters

from jaxformer.batch import PAD, Batch
from jaxformer.commands import export
from jaxformer.data.sources import read_lines
from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.main import parse
from jaxformer.training.sharding import copy_to, local_mesh

SEARCHES = {  # name: (beam_size, alpha)
    "greedy": (1, 0.0), "beam 4, no penalty": (4, 0.0), "beam 4, alpha 0.6": (4, 0.6),
}  # fmt: skip
EXACT = ("greedy", "beam 4, no penalty")
SCORED = "beam 4, alpha 0.6"
QUANTIZED = ("float16", "int8")
TOLERANCE = 1e-4  # of a piece's log-probability
BLEU_TOLERANCE = 0.3  # of int8
BATCH = 50  # sentences


def padded(sequences: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Rows of one length."""
    rows = np.full((len(sequences), length), PAD, np.int32)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return rows


def our_log_probabilities(
    run: Run, params: dict, pairs: tuple[list[list[int]], list[list[int]]]
) -> list[np.ndarray]:
    """Of each piece of each reference, EOS included, by teacher forcing."""
    sides = [padded(side, max(map(len, side))) for side in pairs]
    score = jax.jit(
        lambda params, batch: jax.nn.log_softmax(run.model.logits(params, batch))
    )
    found: list[np.ndarray] = []
    for start in range(0, len(sides[0]), BATCH):
        source, target = (side[start : start + BATCH] for side in sides)
        segments = [(side != PAD).astype(np.int32) for side in (source, target)]
        rows = np.asarray(score(params, Batch(source, target, *segments)))
        for row, ids in zip(rows, pairs[1][start : start + BATCH], strict=True):
            found.append(row[np.arange(len(ids)), ids])
    return found


def their_log_probabilities(
    run: Run, folder: Path, pairs: tuple[list[list[int]], list[list[int]]]
) -> list[list[float]]:
    """The same; CTranslate2 adds EOS by itself."""
    import ctranslate2

    pieces = run.tokenizer.pieces()
    sides = [[[pieces[i] for i in ids[:-1]] for ids in side] for side in pairs]
    translator = ctranslate2.Translator(str(folder), device="cpu")
    return [
        each.log_probs for each in translator.score_batch(*sides, max_batch_size=BATCH)
    ]


def their_translations(folder: Path, lines: Sequence[str]) -> list[str]:
    """By the program in the README of an exported folder."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    program = folder / "translate.py"
    program.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=folder, input="".join(f"{line}\n" for line in lines), check=True,
        stdout=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    return done.stdout.splitlines()


def compare(options: argparse.Namespace, folder: Path) -> dict:
    """All that is compared, by name."""
    sources, references = (
        list(read_lines(file)) for file in (options.source, options.reference)
    )
    flags = [
        "",
        "--mode=export",
        "--format=ctranslate2",
        f"--workdir={options.workdir}",
    ]
    run = open_run(parse(flags))
    params, mesh = read_parameters(run, None), local_mesh()

    def exported(beam_size: int, alpha: float, quantization: str) -> Path:
        output = folder / f"{beam_size}-{alpha}-{quantization}"
        if not output.exists():
            search = [f"--beam_size={beam_size}", f"--alpha={alpha}"]
            kind = f"--quantization={quantization}"
            export.run(parse([*flags, *search, kind, f"--output={output}"]))
        return output

    def bleu(translations: Sequence[str]) -> float:
        languages = run.config["data"]
        return corpus_scores(
            translations,
            references,
            source_language=languages["source_language"],
            target_language=languages["target_language"],
        ).bleu

    found: dict = {"sentences": len(sources)}
    for name, (beam_size, alpha) in SEARCHES.items():
        search = {**run.config["decoding"], "beam_size": beam_size, "alpha": alpha}
        searching = run._replace(config={**run.config, "decoding": search})
        ours = make_translator(searching, mesh, copy_to(mesh, params))(sources)
        theirs = their_translations(exported(beam_size, alpha, "float32"), sources)
        different = [n for n, (a, b) in enumerate(zip(ours, theirs, strict=True))
                     if a != b]  # fmt: skip
        found[name] = {"different": different, "bleu": bleu(ours)}
        for quantization in QUANTIZED:
            lines = their_translations(
                exported(beam_size, alpha, quantization), sources
            )
            found[name][f"bleu_{quantization}"] = bleu(lines)
        print(f"{name}: {found[name]}", flush=True)
    pairs = (run.tokenizer.encode(sources), run.tokenizer.encode_target(references))
    ours = our_log_probabilities(run, params, pairs)
    for quantization in ("float32", *QUANTIZED):
        theirs = their_log_probabilities(
            run, exported(*SEARCHES["greedy"], quantization), pairs
        )
        apart = np.abs(np.concatenate(ours) - np.concatenate(theirs))
        found[f"log_probability_{quantization}"] = {
            "largest": float(apart.max()), "mean": float(apart.mean()),
            "pieces": len(apart),
        }  # fmt: skip
        values = found[f"log_probability_{quantization}"]
        print(f"log-probabilities, {quantization}: {values}", flush=True)
    return found


def main(argv: list[str] | None = None) -> int:
    """Compare and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("workdir", "source", "reference"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    with tempfile.TemporaryDirectory(prefix="jaxformer-parity-") as folder:
        found = compare(parser.parse_args(argv), Path(folder))
    scored = found[SCORED]
    is_same = (
        not any(found[name]["different"] for name in EXACT)
        and found["log_probability_float32"]["largest"] < TOLERANCE
        and abs(scored["bleu_int8"] - scored["bleu"]) < BLEU_TOLERANCE
    )
    print(json.dumps({**found, "is_same": is_same}))
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
