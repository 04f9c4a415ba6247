"""Which config suits a number of sentence pairs, and which scores were measured."""

import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.runs.config_files import Values, read_config_file

QUOTED = 4  # numbers of pairs differ by at most this factor from a measured one


class Recipe(NamedTuple):
    """A recipe of recipes.toml, whose comments explain the fields."""

    pairs: float
    config: str
    why: str
    measured: str
    accelerator: bool = False
    changes: Mapping[str, Mapping[str, object]] = MappingProxyType({})

    def values(self) -> Values:
        """Return the values of the config with the changes."""
        values = read_config_file(self.config)
        for section, keys in self.changes.items():
            values[section] |= keys
        return values


def recipe_for(pairs: int) -> Recipe:
    """Return the recipe for so many pairs on the devices of this process."""
    text = files(__package__).joinpath("recipes.toml").read_text("utf-8")
    recipes = [Recipe(**each) for each in tomllib.loads(text)["recipe"]]
    on_cpu = jax.default_backend() == "cpu"
    found = (each for each in recipes if not (on_cpu and each.accelerator))
    return next(each for each in found if pairs <= each.pairs)


def measured_rows(pairs: int) -> list[dict[str, Any]]:
    """Return the rows of docs/model_size.md with the nearest number of pairs, or []."""
    rows = json.loads(files(__package__).joinpath("quality.json").read_text("utf-8"))

    def factor(row: dict[str, Any]) -> float:
        return max(row["pairs"] / max(1, pairs), pairs / row["pairs"])

    nearest = min(map(factor, rows))
    return [row for row in rows if factor(row) == nearest <= QUOTED]


def describe_quality(pairs: int) -> list[str]:
    """Say what models scored that were trained on about as many pairs."""
    recipe, rows = recipe_for(pairs), measured_rows(pairs)
    lines = [f"{recipe.config}, the choice of jaxformer new: {recipe.measured}"]
    if rows:
        form = "BLEU {:.1f} with tatoeba_rows:{model}_{pairs}"
        scores = [form.format(np.mean(row["bleu"]), **row) for row in rows]
        text = f"{rows[0]['pairs']:,} pairs of everyday English-German"
        lines.append(
            f"for comparison, {text}, at most 7,200 updates: {', '.join(scores)}"
        )
    return [*lines, "docs/model_size.md has the models; other text differs"]
