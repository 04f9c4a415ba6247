"""Compare what CTranslate2 and we say, with a trained model on real text.

    python benchmarks/peers/parity.py --workdir=DIR --source=FILE --reference=FILE

Exports the model and compares the translations, and BLEU, by greedy search, with a beam
of 4 without a length penalty, and with the paper's; and the log-probabilities of the
references, piece by piece. CTranslate2 translates by the program in the exported
README. The exit code is 0 if float32 gives the same translations in the searches EXACT
and log-probabilities within TOLERANCE, and int8 the same BLEU within BLEU_TOLERANCE.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import harness
from benchmarks.models import bleu, make_translator, open_trained
from benchmarks.peers.decoding import export
from jaxformer.data.sources import read_lines

SEARCHES = {  # name: (beam_size, alpha)
    "greedy": (1, 0.0), "beam 4, no penalty": (4, 0.0), "beam 4, alpha 0.6": (4, 0.6),
}  # fmt: skip
*EXACT, SCORED = SEARCHES
QUANTIZED = ("float32", "float16", "int8")
TOLERANCE = 1e-4  # of a piece's log-probability
BLEU_TOLERANCE = 0.3


def translate(folder: Path, lines: Sequence[str]) -> list[str]:
    """Translate by the program in the README of an exported folder."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    program = folder / "translate.py"
    program.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    done = subprocess.run(
        [sys.executable, program.name], cwd=folder, check=True, encoding="utf-8",
        input="".join(f"{line}\n" for line in lines), stdout=subprocess.PIPE,
    )  # fmt: skip
    return done.stdout.splitlines()


def log_probabilities(folder: Path, pieces: list, pairs: tuple) -> np.ndarray:
    """Score the targets of pairs of ids by teacher forcing, EOS included, in a row."""
    import ctranslate2

    # CTranslate2 adds EOS by itself.
    sides = [[[pieces[i] for i in ids[:-1]] for ids in side] for side in pairs]
    translator = ctranslate2.Translator(str(folder), device="cpu")
    scored = translator.score_batch(*sides, max_batch_size=50)
    return np.concatenate([each.log_probs for each in scored])


def compare(options: argparse.Namespace, folder: Path) -> dict:
    """Compare all searches, then log-probabilities, each by every quantization."""
    sources, references = map(
        list, map(read_lines, (options.source, options.reference))
    )
    run, params = open_trained(options.workdir)
    model = run.model, params, run.tokenizer
    found: dict = {"sentences": len(sources)}
    for name, (beam_size, alpha) in SEARCHES.items():
        decoding = vars(run.config.decoding) | {"beam_size": beam_size, "alpha": alpha}
        ours = make_translator(*model, decoding)
        translations = {"ours": ours(sources)}
        for kind in QUANTIZED:
            path = export(folder / f"{name} {kind}", model, kind, decoding)
            translations[kind] = translate(path, sources)
        found[name] = {
            kind: {
                "bleu": bleu(run, lines, references),
                "different": sum(map(str.__ne__, lines, translations["ours"])),
            }
            for kind, lines in translations.items()
        }
        print(f"{name}: {found[name]}", flush=True)
    pairs = run.tokenizer.encode(sources), run.tokenizer.encode_target(references)
    scored = ours.score(sources, references)
    mine = np.concatenate([each.log_probabilities for each in scored])
    for kind in QUANTIZED:
        path = folder / f"{SCORED} {kind}"
        theirs = log_probabilities(path, run.tokenizer.pieces(), pairs)
        apart = np.abs(mine - theirs)
        values = {"largest": float(apart.max()), "mean": float(apart.mean())}
        found[f"log_probability_{kind}"] = values
        print(f"log-probabilities, {kind}: {values} of {len(apart)}", flush=True)
    return found


def measure(options: argparse.Namespace) -> dict:
    """Compare, and say whether the bounds hold."""
    with tempfile.TemporaryDirectory(prefix="jaxformer-parity-") as folder:
        found = compare(options, Path(folder))
    scores = {kind: each["bleu"] for kind, each in found[SCORED].items()}
    found["holds"] = (
        not any(found[name]["float32"]["different"] for name in EXACT)
        and found["log_probability_float32"]["largest"] < TOLERANCE
        and abs(scores["int8"] - scores["ours"]) < BLEU_TOLERANCE
    )
    return found


def main(argv: list[str] | None = None) -> int:
    """Compare and print; give the exit code."""
    flags = {"workdir": Path, "source": Path, "reference": Path}
    return harness.run(__doc__, measure, argv, **flags)


if __name__ == "__main__":
    sys.exit(main())
