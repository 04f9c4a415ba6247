"""Synthetic runs of a toy language, as a report is told of them."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxformer.data.plan import make_plan
from jaxformer.evaluation.evaluator import Evaluation
from jaxformer.evaluation.metrics import every_bleu
from jaxformer.reports import run as report
from jaxformer.reports.translations import Text, Translated
from jaxformer.training.optimizer import inverse_square_root_schedule

WORDS = {
    "red": "rote", "small": "kleine", "old": "alte", "cat": "Katze", "cow": "Kuh",
    "sleeps": "schläft", "waits": "wartet", "sings": "singt", "today": "heute",
}  # fmt: skip
RATE = {"warmup_steps": 200, "learning_rate_scale": 0.5}
SCHEDULE = inverse_square_root_schedule(d_model=64, **RATE)


def make_text(count: int = 80) -> Text:
    """Sentences of 1 to 12 words, and their translations word by word."""
    draw = random.Random(0)
    sources = [
        " ".join(draw.choices(list(WORDS), k=draw.randint(1, 12))) for _ in range(count)
    ]
    references = [" ".join(WORDS[word] for word in each.split()) for each in sources]
    return Text("test", "en", "de", sources, references)


def translate(text: Text, errors: float) -> list[str]:
    """The references with a share of the words wrong."""
    draw = random.Random(1)
    return [
        " ".join("falsch" if draw.random() < errors else word for word in each.split())
        for each in text.references
    ]


def evaluate(text: Text, errors: float) -> Evaluation:
    """Translations with errors, scores without a model."""
    found = translate(text, errors)
    bleus = every_bleu(found, text.references, target_language=text.target_language)
    return Evaluation(found, {"nll": 1.5, "ppl": 4.48}, bleus)


def align(source: str, target: str) -> Any:
    """Word by word."""
    sides = [
        [*(f"\u2581{word}" for word in text.split()), "</s>"]
        for text in (source, target)
    ]
    links = [(n, n) for n in range(min(map(len, sides)) - 1)]
    return SimpleNamespace(source=sides[0], target=sides[1], alignment=lambda: links)


def make_log() -> list[dict]:
    """Lines of metrics.jsonl: a hundred of training, and some of evaluations."""
    lines = []
    for step in range(10, 1001, 10):
        nll = 6 * (50 / step) ** 0.5
        scores = {"step": step, "loss": nll + 1, "nll": nll, "ppl": np.exp(nll)}
        train = {
            "kind": "train", "learning_rate": float(SCHEDULE(step - 1)),
            "gradient_norm": 1 + 50 / step, "tokens_per_second": 4000.0,
            "skipped_updates": 0,
        }  # fmt: skip
        lines.append({**scores, **train})
        if step % 250 == 0:
            bleu = {"kind": "eval", "bleu": 40 - nll, "signature": "nrefs:1|tok:13a"}
            lines.append({**scores, **bleu})
    return [*lines, {**lines[-1], "kind": "final", "bleu": 41.0}]


def make_run(
    name: str = "first", *, text: Text | None = None, errors: float = 0.3, **changed
) -> report.RunFacts:
    """A run; `changed` are fields of RunFacts, or of its config as section__key."""
    config: dict[str, dict] = {
        "data": {"source_language": "en", "target_language": "de",
                 "directory": "/secret/folder/text"},
        "batches": {"layout": "buckets"},
        "model": {"encoder_layers": 2, "decoder_layers": 2},
        "optimizer": dict(RATE),
        "training": {"steps": 1000, "label_smoothing": 0.1, "average": 5,
                     "ema_decay": None},
    }  # fmt: skip
    for key in [key for key in changed if "__" in key]:
        section, _, part = key.partition("__")
        config[section][part] = changed.pop(key)
    side = {"tokens": 900, "unknown": 1, "longest": 12}
    counts = {"pairs": 110, "kept": 100, "dropped": {"empty": 0, "too_long": 10},
              "source": side, "target": side}  # fmt: skip
    translated = None
    if text is not None:
        translated = Translated(evaluate(text, errors), None, 123_456, align)
    lengths = np.tile([9, 12, 15], 16)  # one shape: a fifth of it is padding
    batching = SimpleNamespace(
        layout="buckets", row_length=16, max_shapes=1, row_multiple=1,
        tokens_per_microbatch=96, tokens_per_update=96,
    )  # fmt: skip
    plan = make_plan(lengths, lengths, batching, batching)
    facts = report.RunFacts(
        name, config, "en-de", "c0ffee", 96, make_log(), SCHEDULE,
        {"train": counts, "dev": counts}, plan, {"jax": "1.2.2"}, translated,
    )  # fmt: skip
    return facts._replace(**changed)
