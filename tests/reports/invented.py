"""Runs that nobody trained, as a report is told of them."""

import random
from types import SimpleNamespace
from typing import Any

from jaxformer.reports import run as report
from jaxformer.reports.facts import Facts, Text, Translated

WORDS = {
    "red": "rote", "small": "kleine", "old": "alte", "cat": "Katze", "cow": "Kuh",
    "sleeps": "schläft", "waits": "wartet", "sings": "singt", "today": "heute",
}  # fmt: skip
ENVIRONMENT = {
    "versions": {"jax": "1.2.3"}, "python": "3.11", "system": "Linux",
    "processor": "a processor", "cores": 2, "devices": "1 x cpu",
}  # fmt: skip


def invent_text(count: int = 80) -> Text:
    """Sentences of 1 to 12 words, and their translations word by word."""
    draw = random.Random(0)
    sources = [
        " ".join(draw.choices(list(WORDS), k=draw.randint(1, 12))) for _ in range(count)
    ]
    references = [" ".join(WORDS[word] for word in each.split()) for each in sources]
    return Text("test", sources, references)


def translate(text: Text, *, errors: float, seed: int = 1) -> list[str]:
    """The references with a share of the words wrong."""
    draw = random.Random(seed)
    return [
        " ".join("falsch" if draw.random() < errors else word for word in each.split())
        for each in text.references
    ]


def align(source: str, target: str) -> Any:
    """Word by word."""
    sides = [
        [*(f"\u2581{word}" for word in text.split()), "</s>"]
        for text in (source, target)
    ]
    links = [(n, n) for n in range(min(map(len, sides)) - 1)]
    return SimpleNamespace(source=sides[0], target=sides[1], alignment=lambda: links)


def invent_log(steps: int = 1000, **optimizer: float) -> list[dict]:
    """Lines of metrics.jsonl, a hundred of training and some of evaluations."""
    lines = []
    for step in range(steps // 100, steps + 1, steps // 100):
        nll = 6 * (steps / 20 / step) ** 0.5
        scores = {
            "loss": nll + 1, "nll": nll, "ppl": 2.718281828**nll, "accuracy": 0.5,
        }  # fmt: skip
        rate = report.learning_rate(step, **optimizer)
        lines.append(
            {
                "step": step,
                "kind": "train",
                "time": 0.0,
                **scores,
                "learning_rate": rate,
                "gradient_norm": 1 + 50 / step,
                "tokens_per_second": 4000.0,
                "skipped_updates": 0,
            }
        )
        if step % (steps // 4) == 0:
            bleu = {"bleu": 40 - nll, "signature": "nrefs:1|tok:13a", "chrf": 60.0}
            lines.append({"step": step, "kind": "eval", "time": 0.0, **scores, **bleu})
    lines.append({**lines[-1], "kind": "final", "bleu": 41.0})
    return lines


def invent_run(
    name: str = "first",
    *,
    text: Text | None = None,
    errors: float = 0.3,
    **changed: Any,
) -> Facts:
    """A run; `changed` are fields of Facts, or of its config as section__key."""
    optimizer = {"d_model": 64, "warmup_steps": 200, "scale": 0.5}
    config: dict[str, dict] = {
        "data": {"source_language": "en", "target_language": "de",
                 "directory": "/secret/folder/text", "max_length": 64},
        "model": {"encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "d_ff": 128,
                  "num_heads": 4, "dropout": 0.1},
        "optimizer": {"warmup_steps": 200, "learning_rate_scale": 0.5},
        "training": {"steps": 1000, "label_smoothing": 0.1, "seed": 0},
    }  # fmt: skip
    for key in [key for key in changed if "__" in key]:
        section, _, part = key.partition("__")
        config[section][part] = changed.pop(key)
    side = {"tokens": 900, "unknown": 1, "longest": 12}
    counts = {"pairs": 110, "kept": 100, "dropped": {"empty": 0, "too_long": 10},
              "source": side, "target": side}  # fmt: skip
    layout = {"padding_share": 0.25, "updates_per_epoch": 7, "shapes": 1}
    shape = {"rows": 8, "source_length": 16, "target_length": 16, "microbatches": 7,
             "pairs": 100, "padding_share": 0.25}  # fmt: skip
    translated = None
    if text is not None:
        translated = Translated(
            translate(text, errors=errors), 1.5, 4.48, "latest", align
        )
    values = {
        "name": name,
        "config": config,
        "direction": "en-de",
        "tokenizer": "c0ffee",
        "vocabulary": 96,
        "parameters": 123_456,
        "metrics": invent_log(**optimizer),
        "corpus": {"train": counts, "dev": counts, "vocab_size": 96},
        "batches": {
            "layouts": [{"layout": "buckets", "used": True, **layout}],
            "shapes": [shape],
        },
        "versions": {"jax": "1.2.2"},
        "translated": translated,
    }
    return Facts(**{**values, **changed})


def gather(*runs: Facts, text: Text | None, examples: int = 2) -> dict:
    """The data of a report."""
    return report.gather(runs, text, examples=examples, environment=ENVIRONMENT)
