"""Keys that a config no longer has: what replaces each, and how a record is read.

A config file or a flag with such a key is refused with one line. The recorded config of
a run that an earlier version wrote is translated.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxformer.system.errors import InputError

SEE_KEYS = "see jaxformer --config=FILE --help"  # the hint for an unknown key
Section = Mapping[str, Any]
# Sets values of a new section; given are the old section, and the other old sections.
Translate = Callable[[Section, dict[str, Any], Mapping[str, Section]], None]


class Replaced(NamedTuple):
    """What to write instead of a key; `translate` None drops a recorded value."""

    remedy: str
    translate: Translate | None = None


def _files(split: str) -> Replaced:
    def translate(old: Section, new: dict[str, Any], _: object) -> None:
        pair = old[f"{split}_source"], old[f"{split}_target"]
        if old["corpus"] == "files" and all(pair):
            new[split] = ",".join(pair)

    return Replaced(f"data.{split}=SOURCE,TARGET names both files", translate)


def _built_in_pairs(key: str, *splits: str) -> Replaced:
    def translate(old: Section, new: dict[str, Any], _: object) -> None:
        if old["corpus"].startswith("builtin:"):
            new.update(dict.fromkeys(splits, str(old[key])))

    names = " and ".join(f"data.{split}" for split in splits)
    how = f"{names} of a built-in corpus: the number of pairs"
    return Replaced(how, translate)


def _tfds_folder(old: Section, new: dict[str, Any], _: object) -> None:
    if old["corpus"].startswith("tfds:"):
        new["directory"] = old["data_dir"]


def _biases(old: Section, new: dict[str, Any], _: object) -> None:
    of_attention = "all" if old["logits_bias"] else "attention"
    others = "logits" if old["logits_bias"] else "none"
    new["biases"] = of_attention if old["attention_bias"] else others


def _distance(old: Section, new: dict[str, Any], _: object) -> None:
    if old["relative_distance"] is not None:
        new["max_positions"] = old["relative_distance"]


def _peak(old: Section, new: dict[str, Any], values: Mapping[str, Section]) -> None:
    if old["learning_rate_scale"] != 1:
        steps, d_model = old["warmup_steps"], values["model"]["d_model"]
        peak = old["peak_learning_rate"] or (d_model * steps) ** -0.5
        new["peak_learning_rate"] = old["learning_rate_scale"] * peak


def _profile(old: Section, new: dict[str, Any], _: object) -> None:
    if old["profile_steps"] is not None:
        new["trackers"] = [*old["trackers"], "profile"]


_BIASES = Replaced("model.biases is none, attention, logits or all", _biases)
REPLACED = {
    **{
        f"data.{split}_{side}": _files(split)
        for split in ("train", "dev", "test")
        for side in ("source", "target")
    },
    "data.builtin_pairs": _built_in_pairs("builtin_pairs", "train"),
    "data.builtin_eval_pairs": _built_in_pairs("builtin_eval_pairs", "dev", "test"),
    "data.data_dir": Replaced("data.directory", _tfds_folder),
    "model.attention_bias": _BIASES,
    "model.logits_bias": _BIASES,
    "model.relative_distance": Replaced(
        "model.max_positions is the largest distance of relative positions", _distance
    ),
    "optimizer.learning_rate_scale": Replaced(
        "optimizer.peak_learning_rate is the rate after the warm-up, by default "
        "(d_model * warmup_steps)^-0.5",
        _peak,
    ),
    "training.max_bad_steps": Replaced("a run ends after 10 non-finite updates"),
    "training.profile_steps": Replaced("training.trackers=profile", _profile),
    "data.download": Replaced("TensorFlow Datasets downloads what it lacks"),
}


def require_current(name: str) -> None:
    """Raise InputError for a key that was replaced, given as SECTION.KEY."""
    if name in REPLACED:
        raise InputError(f"the config key {name} is gone: {REPLACED[name].remedy}")


def translated(values: Mapping[str, Section]) -> dict[str, Section]:
    """Return a recorded config without replaced keys, whose values it translates."""
    sections = {}
    for name, old in values.items():
        sections[name], moved = _split(name, old, old, values)
        sections[name].update(moved)
    data = sections.get("data", {})
    if data.get("corpora"):
        corpora = [_corpus(own, values, data) for own in data["corpora"]]
        sections["data"] = {**data, "corpora": corpora}
    return sections


def _corpus(
    own: Section, values: Mapping[str, Section], data: Section
) -> dict[str, Any]:
    """Translate one of `data.corpora`; `data` is the section, translated."""
    kept, moved = _split("data", own, {**values["data"], **own}, values)
    return kept | {key: value for key, value in moved.items() if value != data[key]}


def _split(
    name: str, own: Section, old: Section, values: Mapping[str, Section]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of `own` that stay, and what those of `old` become."""
    moved: dict[str, Any] = {}
    for key in old:
        replaced = REPLACED.get(f"{name}.{key}")
        if replaced and replaced.translate:
            replaced.translate(old, moved, values)
    kept = {key: own[key] for key in own if f"{name}.{key}" not in REPLACED}
    return kept, moved
