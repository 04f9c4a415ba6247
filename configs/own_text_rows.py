"""Rows that measure fine-tuning, several languages and made text, in minutes each.

Reproduces  no published number. A small model learns everyday sentences, then captions,
            with and without everyday sentences beside them. One model learns the six
            directions of three languages, and six models one each. Ten thousand pairs
            are joined by back-translations. A student learns from its teachers. Words
            are split at random. Results: docs/results.md.
Hardware    one CPU core (AMD EPYC) for each run.
Data        as configs/multi30k.py, with the French captions, and configs/tatoeba.py.
            docs/results.md says how data/few, data/back and data/distilled are
            made.

    jaxformer train --config=configs/own_text_rows.py:everyday \\
        runs/everyday_1
    jaxformer train --config=configs/own_text_rows.py:fine_tuned \\
        --init_from=runs/everyday_1 runs/fine_tuned_1
"""

from itertools import permutations

from ml_collections import ConfigDict

from jaxformer.configs import multi30k_rows

LANGUAGES = "en", "de", "fr"
CAPTIONS = {"name": "captions", "directory": "data/multi30k"}
EVERYDAY = {
    "name": "everyday", "directory": "data/tatoeba_ende", "dev": "dev", "test": "test",
}  # fmt: skip
FEW = {
    "directory": "data/few", "dev": "../tatoeba_ende/dev",
    "test": "../tatoeba_ende/test",
}  # fmt: skip
PATIENT = {
    "model": {"dropout": 0.3},
    "training": {
        "steps": 12_000,
        "eval_every": 400,
        "save_every": 400,
        "patience": 4,
    },
}
STUDENT = {
    "model": {"encoder_layers": 3, "decoder_layers": 1}, "training": {"steps": 6000},
}  # fmt: skip
# The best peak of 1e-3, 3e-3 and 6e-3, on the validation text.
LINEAR = {"schedule": "linear", "peak_learning_rate": 6e-3}
FINE_TUNING = {
    "optimizer": LINEAR | {"warmup_steps": 100}, "training": {"steps": 1000},
}  # fmt: skip


def _directions() -> tuple[dict, ...]:
    """The six directions of three languages; a tag says which target is wanted."""
    return tuple(
        {
            "name": f"{source}-{target}",
            "tag": f">>{target}<<",
            "source_language": source,
            "target_language": target,
        }
        for source, target in permutations(LANGUAGES, 2)
    )


# Name of the row: what differs from the base row of configs/multi30k_rows.py.
ROWS = {
    "everyday": {
        "data": {key: EVERYDAY[key] for key in ("directory", "dev", "test")},
        "training": {"steps": 6000},
    },
    "captions": {  # what fine-tuning begins without
        "optimizer": LINEAR | {"warmup_steps": 300}, "training": {"steps": 1000},
    },
    "fine_tuned": FINE_TUNING,  # on captions alone
    "fine_tuned_mixed": FINE_TUNING
    | {"data": {"corpora": (CAPTIONS, EVERYDAY | {"weight": 0.2})}},
    "six_directions": {
        "data": {"corpora": _directions(), "vocab_size": 6000},
        "training": {"steps": 12_000},
    },
    **{
        f"{source}_{target}": {
            "data": {"source_language": source, "target_language": target},
        }
        for source, target in permutations(LANGUAGES, 2)
    },
    "few": PATIENT | {"data": FEW},
    "few_reverse": PATIENT
    | {"data": FEW | {"source_language": "de", "target_language": "en"}},
    "back_translated": PATIENT
    | {
        "data": {
            "corpora": (
                FEW | {"name": "few", "weight": 4},
                {"name": "back", "directory": "data/back", "dev": "", "tag": ">>bt<<"},
            )
        }
    },
    "subword_sampling": {  # beside transformer of configs/multi30k_architectures.py
        "data": {"subword_sampling": 0.1},
        "training": {"steps": 6000, "save_every": 300},
    },
    "student": STUDENT,
    "distilled": STUDENT
    | {
        "data": {
            "directory": "data/distilled", "dev": "../multi30k/val",
            "test": "../multi30k/test_2016_flickr",
        }
    },
}  # fmt: skip


def get_config(row: str = "") -> ConfigDict:
    """The config of one row. Raises InputError, naming the rows, for any other word."""
    multi30k_rows.require_row(row, ROWS, "own_text_rows.py:everyday")
    config = multi30k_rows.get_config("base")
    steps = ROWS[row].get("training", {}).get("steps", config.training.steps)
    every = {"eval_every": steps, "save_every": steps // 10}
    config.training.update(keep=5, average=5, **every)
    config.update(ROWS[row])
    return config
