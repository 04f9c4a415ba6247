"""Models that Marian trains, and what it computes with them.

`python -m tests.exports.marian_models FOLDER` makes tests/exports/marian/ anew
in FOLDER. It takes four minutes and the command of the package pymarian (1.12.42).
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece
import yaml

from jaxformer import grammar

COMMAND = "pymarian"
TRAIN = """
    --type transformer --dim-emb 16 --transformer-heads 2 --transformer-dim-ffn 32
    --cpu-threads 1 --mini-batch-words 500 --maxi-batch 100 -w 200 --save-freq 4000u
    --after-batches 4000 --learn-rate 0.01 --lr-warmup 200 --label-smoothing 0.1
    --optimizer-params 0.9 0.98 1e-09 --cost-type ce-mean-words --max-length 80 --seed 1
"""
PRE_NORM = (
    "--transformer-preprocess n --transformer-postprocess da "
    "--transformer-postprocess-top n"
)
SSRU = "--transformer-decoder-autoreg rnn --dec-cell ssru"
POST_NORM = "--transformer-postprocess dan"
# The options of each model, and its vocabularies.
MODELS = {
    "attention": (
        f"--enc-depth 1 --dec-depth 1 --tied-embeddings-all {POST_NORM} "
        "--transformer-ffn-activation relu",
        ("vocab.yml", "vocab.yml"),
    ),
    "ssru": (
        f"--enc-depth 2 --dec-depth 1 --tied-embeddings-all {PRE_NORM} {SSRU} "
        "--transformer-ffn-activation swish",
        ("vocab.spm", "vocab.spm"),
    ),
    "deep_ssru": (
        f"--enc-depth 3 --dec-depth 2 --tied-embeddings-all {POST_NORM} {SSRU} "
        "--transformer-ffn-activation relu",
        ("vocab.spm", "vocab.spm"),
    ),
    "two_vocabularies": (
        # Marian decodes its own pre-norm self-attention without the norm of keys.
        f"--enc-depth 1 --dec-depth 2 --tied-embeddings {POST_NORM}",
        ("source.spm", "target.spm"),
    ),
    "untied": (
        f"--enc-depth 2 --dec-depth 1 {POST_NORM} "
        "--transformer-train-position-embeddings",
        ("vocab.spm", "vocab.spm"),
    ),
}


def pairs_of(split: str, count: int) -> list[tuple[str, str]]:
    """Return short pairs among so many of the built-in corpus."""
    pairs = [(p.source, p.target) for p in grammar.generate(split, count, 0)]
    return [pair for pair in pairs if max(map(len, pair)) < 60]


def write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))


def make(folder: Path, name: str) -> Path:
    """Let Marian train a model in a new folder inside `folder`; return the folder."""
    options, vocabularies = MODELS[name]
    made, scratch = folder / name, folder / f"{name}.scratch"
    made.mkdir(parents=True)
    scratch.mkdir()
    text = [*zip(*pairs_of("train", 6000), strict=True)]
    splits = vocabularies[0].endswith(".yml")
    files = ["source", "target"] if splits or len({*vocabularies}) > 1 else ["vocab"]
    pieces = {"</s>": 0, "<unk>": 1}
    for number, stem in enumerate(files):
        lines = text[number] if len(files) == 2 else [*text[0], *text[1]]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(scratch / stem),
            vocab_size=130 if len(files) == 2 else 160, character_coverage=1.0,
            bos_id=-1, eos_id=0, unk_id=1, minloglevel=2,
            normalization_rule_name="identity",
        )  # fmt: skip
        model = (scratch / f"{stem}.model").read_bytes()
        (made / f"{stem}.spm").write_bytes(model)
        if splits:
            known = sentencepiece.SentencePieceProcessor(model_proto=model)
            text[number] = [
                " ".join(known.encode(x, out_type=str)) for x in text[number]
            ]
            learnt = sorted(known.id_to_piece(list(range(2, len(known)))))
            pieces |= {
                p: len(pieces) + n for n, p in enumerate(learnt) if p not in pieces
            }
    if splits:
        ids = {piece: number for number, piece in enumerate(pieces)}
        listed = yaml.safe_dump(ids, allow_unicode=True, sort_keys=False)
        (made / "vocab.yml").write_text(listed)
    for side, lines in zip(("source", "target"), text, strict=True):
        write_lines(scratch / side, lines)
    marian(
        made, "train", *TRAIN.split(), *options.split(), "-m", scratch / "model.npz",
        "-t", scratch / "source", scratch / "target", "--vocabs", *vocabularies,
    )  # fmt: skip
    (made / "model.npz").write_bytes((scratch / "model.npz").read_bytes())
    decoder = {
        "relative-paths": True, "models": ["model.npz"], "vocabs": [*vocabularies],
        "beam-size": 4, "normalize": 0.6,
    }  # fmt: skip
    (made / "decoder.yml").write_text(yaml.safe_dump(decoder, sort_keys=False))
    return made


def marian(folder: Path, *arguments: object) -> str:
    """Run a command of Marian in a folder; return what it prints."""
    done = subprocess.run(
        [COMMAND, *map(str, arguments)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def computed(folder: Path, scratch: Path, pairs: Sequence[tuple[str, str]]) -> dict:
    """Return what Marian computes of pairs with the model of a folder."""
    scratch.mkdir(exist_ok=True)
    decoder = yaml.safe_load((folder / "decoder.yml").read_text())
    vocabularies = decoder["vocabs"]
    sides = [*map(list, zip(*pairs, strict=True))]
    given, split = sides, vocabularies[0].endswith(".yml")
    if split:
        given = []
        for side, lines in zip(("source", "target"), sides, strict=True):
            known = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
            given.append([" ".join(known.encode(line, out_type=str)) for line in lines])
    files = scratch / "source", scratch / "target"
    for file, lines in zip(files, given, strict=True):
        write_lines(file, lines)
    how = "-m", "model.npz", "-v", *vocabularies, "--cpu-threads", 1, "--quiet"

    def text_of(line: str) -> str:
        return line.replace(" ", "").replace("\u2581", " ").strip() if split else line

    scores = marian(folder, "score", *how, "-t", *files).split()
    decode = "decode", *how, "-i", files[0], "--max-length-factor", 30, "-b"
    greedy = marian(folder, *decode, 1).splitlines()
    best: dict[int, tuple[str, float]] = {}
    for line in marian(folder, *decode, 4, "--normalize", 0.6, "--n-best").splitlines():
        number, text, _, score = re.split(r" ?\|\|\| ", line)
        best.setdefault(int(number), (text_of(text.strip()), float(score)))
    return {
        "source": sides[0],
        "target": sides[1],
        "scores": [*map(float, scores)],
        "greedy": [*map(text_of, greedy)],
        "beam": [best[number][0] for number in sorted(best)],
        "beam_scores": [best[number][1] for number in sorted(best)],
    }


if __name__ == "__main__":
    for model in ("attention", "ssru"):
        made = make(Path(sys.argv[1]), model)
        found = computed(made, made.parent / "text", pairs_of("test", 400)[:40])
        (made / "marian.json").write_text(
            json.dumps(found, ensure_ascii=False, indent=0)
        )
