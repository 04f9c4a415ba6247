"""Config files, those of jaxformer and users' own, and changes of single values."""

import dataclasses
import difflib
import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.config import Config
from jaxformer.errors import InputError
from jaxformer.settings import TYPE_NAMES, Section, kind_of

Values = dict[str, dict[str, Any]]  # by section and key


class ConfigRequest(NamedTuple):
    """What the user asks for: a file's values, or None for those of the run."""

    values: Values | None = None
    overrides: tuple[tuple[str, str], ...] = ()  # ("training.steps", "100"), ...

    def resolve(self, recorded: Values | None) -> Values:
        """The values asked for; `recorded` are those of the run, if there is one."""
        values = self.values if self.values is not None else recorded
        assert values is not None
        return override(values, self.overrides)


RECORDED = ConfigRequest()  # nothing but what the run recorded


def read_config_file(name: str) -> Values:
    """Run `get_config` of FILE[:ROW], a path or the name of a config of jaxformer.

    Raises InputError if there is no such file, or if it fails.
    """
    file, colon, row = name.partition(":")
    path = _find(file)
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        takes_row = bool(inspect.signature(module.get_config).parameters)
        if row and not takes_row:
            raise InputError(f"the config file {file} has no rows; leave out :{row}")
        return module.get_config(*([row] if colon else [])).to_dict()
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the config file {file} fails: {type(error).__name__}: {error}"
        ) from error


def _find(file: str) -> Path:
    """The file of that name, else the config of jaxformer that is called so."""
    for path in (Path(file), Path(f"{file}.py")):
        if path.is_file():
            return path
    folder = Path(__file__).with_name("configs")
    own = folder / f"{Path(file).stem}.py"
    if Path(file).parent in (Path(), Path("configs")) and own.is_file():
        return own
    names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
    near = difflib.get_close_matches(Path(file).stem, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    raise InputError(f"there is no config file {file}; {hint}")


def sections_of(values: Mapping[str, Any]) -> dict[str, type[Section]]:
    """The dataclass of each section of a config."""
    from jaxformer.models.architectures import config_type

    types = {field.name: field.type for field in dataclasses.fields(Config)}
    architecture = values.get("model", {}).get("architecture", "")
    return {**types, "model": config_type(architecture)}


def override(values: Values, overrides: tuple[tuple[str, str], ...]) -> Values:
    """A copy of the values with some replaced, each read as its key's type.

    Raises InputError for an unknown key, naming the nearest, and a wrong type.
    """
    if not overrides:
        return values
    values = {section: dict(keys) for section, keys in values.items()}
    for name, text in overrides:  # it decides which keys the section has
        if name == "model.architecture":
            values["model"]["architecture"] = text
    sections = sections_of(values)
    known = {
        f"{section}.{field.name}": field
        for section, kind in sections.items()
        for field in dataclasses.fields(kind)
    }
    for name, text in overrides:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"the config has no key {name}{hint}")
        section, _, key = name.partition(".")
        values[section][key] = read_value(name, text, *kind_of(known[name]))
    return values


_WORDS = {"true": True, "false": False, "1": True, "0": False}


def read_value(name: str, text: str, kind: type, may_be_none: bool) -> Any:
    """Read text as a value of a key. Raises InputError that names the type."""
    if text == "None" and may_be_none:
        return None
    try:
        return _WORDS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        none = " or None" if may_be_none else ""
        raise InputError(
            f"--config.{name}={text} is not {TYPE_NAMES[kind]}{none}"
        ) from None


def describe_keys(values: Values) -> str:
    """Every key of a config with its value, type and meaning, as text."""
    lines = []
    for section, kind in sections_of(values).items():
        lines.append(f"{section}: {inspect.getdoc(kind)}")
        for field in dataclasses.fields(kind):
            value = values.get(section, {}).get(field.name)
            free = " May change on resume." if field.metadata["free"] else ""
            lines.append(f"  --config.{section}.{field.name}={value}")
            lines.append(f"      {field.metadata['meaning']}{free}")
        lines.append("")
    return "\n".join(lines)
