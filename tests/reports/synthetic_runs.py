"""Synthetic runs of a toy language, as a report is told of them."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxformer.config.sections import OptimizerConfig
from jaxformer.configs import wmt_base
from jaxformer.evaluation.evaluator import Evaluation
from jaxformer.evaluation.metrics import every_bleu
from jaxformer.reports import run_report as report
from jaxformer.reports.translations import ReportedText, describe_translations
from jaxformer.training.optimizer import make_schedule

from .synthetic_attention import attention

WORDS = {
    "red": "rote", "small": "kleine", "old": "alte", "cat": "Katze", "cow": "Kuh",
    "sleeps": "schläft", "waits": "wartet", "sings": "singt", "today": "heute",
}  # fmt: skip
RATE = {"warmup_steps": 200, "peak_learning_rate": 0.5 * (64 * 200) ** -0.5}
VALUES = wmt_base.get_config().optimizer.to_dict()
SCHEDULE = make_schedule(OptimizerConfig(**VALUES | RATE), d_model=64, steps=1000)
SIDE = {"tokens": 900, "unknown": 1, "longest": 12}
COUNTS = {
    "pairs": 110, "kept": 100, "dropped": {"empty": 0, "too_long": 10},
    "source": SIDE, "target": SIDE,
}  # fmt: skip
PLAN = SimpleNamespace(real_token_share=0.8, updates_per_epoch=8, shapes=[(6, 16, 16)])


def no_tag(source: str) -> str:
    return ""


def make_text(count: int = 80) -> ReportedText:
    """Sentences of 1 to 12 words, and their translations word by word."""
    draw = random.Random(0)
    words = [draw.choices(list(WORDS), k=draw.randint(1, 12)) for _ in range(count)]
    references = [" ".join(map(WORDS.get, each)) for each in words]
    return ReportedText("test", "en", "de", list(map(" ".join, words)), references)


def evaluate(text: ReportedText, errors: float, wrong: str = "falsch") -> Evaluation:
    """The references with a share of the words wrong; scores without a model."""
    draw = random.Random(1)
    found = [
        " ".join(wrong if draw.random() < errors else word for word in each.split())
        for each in text.references
    ]
    bleus = every_bleu(found, text.references, target_language=text.target_language)
    return Evaluation(found, {"nll": 1.5, "ppl": 4.48}, bleus)


def make_log(**changed: Any) -> list[dict]:
    """Lines of metrics.jsonl: a hundred of training, and some of evaluations."""
    lines = []
    for step in range(10, 1001, 10):
        nll = 6 * (50 / step) ** 0.5
        scores = {"step": step, "loss": nll + 1, "nll": nll, "ppl": np.exp(nll)}
        rates = {"learning_rate": float(SCHEDULE(step - 1)), "tokens_per_second": 4e3}
        state = {"gradient_norm": 1 + 50 / step, "skipped_updates": 0}
        lines.append({"kind": "train", **scores, **rates, **state})
        if step % 250 == 0:
            bleu = {"bleu": 40 - nll, "signature": "nrefs:1|tok:13a"}
            lines.append({"kind": "eval", **scores, **bleu})
    lines.append({**lines[-1], "kind": "final", "bleu": 41.0})
    return [{**line, **changed} for line in lines]


def make_run(
    name: str = "first",
    *,
    text: ReportedText | None = None,
    errors: float = 0.3,
    wrong: str = "falsch",
    examples: int = 2,
    tokenizer: str = "c0ffee",
    warmup_steps: int = 200,
    label_smoothing: float = 0.1,
    directory: str = "/secret/folder/text",
    metrics: Sequence[dict] = tuple(make_log()),
    is_prepared: bool = True,
) -> tuple[dict, list[str] | None]:
    """A run's data in a report, and its translations of a text."""
    config = {
        "data": {"source_language": "en", "target_language": "de",
                 "directory": directory},
        "batches": {"layout": "buckets"},
        "optimizer": {**RATE, "warmup_steps": warmup_steps},
        "training": {"steps": 1000, "label_smoothing": label_smoothing, "average": 5,
                     "ema_decay": None},
    }  # fmt: skip
    facts = {"name": name, "direction": "en-de", "tokenizer": tokenizer}
    facts |= {
        "length_unit": "words",
        "vocabulary": 96,
        "versions": {"jax": "1.2.2"} if is_prepared else {},
    }
    done = text and evaluate(text, errors, wrong)
    if text is not None:
        facts |= {"parameters": 123_456, "search": "beam_size=1"}
        facts |= describe_translations(done, text, attention, examples, no_tag)
    described = report.describe_run(
        facts,
        config,
        metrics,
        SCHEDULE,
        {"train": COUNTS, "dev": COUNTS} if is_prepared else None,
        PLAN if is_prepared else None,
    )
    return described, done and done.translations
