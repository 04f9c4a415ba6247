"""Config files: those of jaxformer, users' own with changes, and a run's record."""

import dataclasses
import hashlib
import inspect
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill, indent
from typing import Any, NamedTuple

from jaxformer.config.replaced import SEE_KEYS, require_current, translated
from jaxformer.config.sections import Config
from jaxformer.config.settings import Section, kind_of, read_value, require_names
from jaxformer.models.architectures import config_type, require_own_keys
from jaxformer.system.errors import InputError, did_you_mean
from jaxformer.system.files import entries, file_name, near_path

Values = dict[str, dict[str, Any]]  # by section and key
RECORD = "config.json"
LAST_TO_READ_OLDER = "2b61deb"  # a commit
MODEL, EXPORTED = "model.bin", "run"  # of CTranslate2; and beside it in our exports
_OF_EXPORTS = "model_type", "unk_token"  # keys of Hugging Face and of CTranslate2


class ConfigRequest(NamedTuple):
    """The config that a command line asks for."""

    values: Values | None = None  # of a config file; None: those of the run
    overrides: tuple[tuple[str, str], ...] = ()  # ("training.steps", "100"), ...
    init_from: Path | None = None  # the run to begin with

    def resolve(self, recorded: Values | None) -> Values:
        """Return the config's values; `recorded` are those of a run, if any.

        Raises InputError for a section without keys, an unknown key or a wrong type.
        """
        values = self.values if self.values is not None else recorded
        for name, section in values.items():
            if not isinstance(section, Mapping):
                kind = type(section).__name__
                raise InputError(
                    f"config section {name} is a {kind}; write it as keys with values"
                )
        overrides = self.overrides
        if self.init_from is not None:
            overrides = (*overrides, ("training.init_from", file_name(self.init_from)))
        return override(values, overrides)


RECORDED = ConfigRequest()  # nothing but what the run recorded


def read_config_file(name: str) -> Values:
    """Run `get_config` of FILE[:ROW], a path or the name of a config of jaxformer.

    Raises InputError if there is no such file, or if it fails.
    """
    has_row = not Path(name).is_file()  # a path may have a colon
    file, colon, row = name.partition(":") if has_row else (name, "", "")
    path = _find(file)
    folder, imported = str(path.parent.absolute()), {*sys.modules}
    sys.path.insert(0, folder)  # as of a script, which imports its neighbours
    try:
        get_config = runpy.run_path(str(path)).get("get_config")
        if get_config is None:
            raise InputError(f"the config file {file} has no get_config; write one")
        if colon and not inspect.signature(get_config).parameters:
            raise InputError(f"the config file {file} has no rows; leave out :{row}")
        values = get_config(*([row] if colon else [])).to_dict()
        if not isinstance(values, Mapping):
            raise TypeError(f"get_config gives a {type(values).__name__} of values")
        return values
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        hint = "; a config is Python: for a run give its folder, without --config"
        raise InputError(
            f"the config file {file} fails: {type(error).__name__}: {error}"
            + hint * (path.suffix == ".json")
        ) from error
    finally:
        sys.path.remove(folder)
        for module in sys.modules.keys() - imported:  # other configs have their own
            top = module.partition(".")[0]
            places = path.parent / top, path.parent / f"{top}.py"
            if top not in imported and any(place.exists() for place in places):
                del sys.modules[module]


def _find(file: str) -> Path:
    """Find a file, else the config of jaxformer with that name."""
    for path in (Path(file), Path(f"{file}.py")):
        if path.is_file():
            return path
    folder, given = Path(__file__).parents[1] / "configs", Path(file)
    own = folder / f"{given.stem}.py"
    may_be_own = given.parent in (Path(), Path("configs"))
    if may_be_own and own.is_file():
        return own
    names = [path.stem for path in entries(folder, "[a-z]*.py")]
    hint = did_you_mean(given.stem, names * may_be_own)
    near = given.with_name(f"{given.stem}.py") if given.name else given
    hint = hint or near_path(near, f"there are {', '.join(names)}")
    raise InputError(f"there is no config file {file}{hint}")


def sections_of(values: Mapping[str, Any]) -> dict[str, type[Section]]:
    """The dataclass of each section of a config.

    Raises InputError for an unknown architecture, and for a key of another one.
    """
    types = {field.name: field.type for field in dataclasses.fields(Config)}
    given = values.get("model", {})
    model = config_type(given.get("architecture", ""))
    require_own_keys(given)
    return {**types, "model": model}


def parse_config(values: Mapping[str, Mapping[str, Any]]) -> Config:
    """Check values by section and key, as `Section.of`.

    Raises InputError that names what is wrong.
    """
    names = [field.name for field in dataclasses.fields(Config)]
    require_names("section", "", values, names)
    sections = sections_of(values).items()
    return Config(**{name: kind.of(values[name]) for name, kind in sections})


def override(values: Values, overrides: tuple[tuple[str, str], ...]) -> Values:
    """Return a copy with some values replaced, each read as its key's type.

    Raises InputError for an unknown key or a wrong type.
    """
    if not overrides:
        return values
    values = {section: dict(keys) for section, keys in values.items()}
    architecture = dict(overrides).get("model.architecture")
    if architecture is not None:  # it decides which keys the section has
        values.setdefault("model", {})["architecture"] = architecture
    sections = sections_of(values)
    known = {
        f"{section}.{key}": field
        for section, kind in sections.items()
        for key, field in kind.keys(values.get(section, {})).items()
    }
    for name, text in overrides:
        section, _, key = name.partition(".")
        if name not in known:
            require_current(name)
            of_sides = [f"{section}.{side}.{key}" for side in ("encoder", "decoder")]
            near = [k for k in of_sides if k in known]  # of a hybrid
            if section == "model" and not near:
                require_own_keys({**values.get("model", {}), key: text})
            own = sorted(known, key=lambda each: not each.startswith(f"{section}."))
            near += [k for k in own if f"_{key}_" in f"_{k.partition('.')[2]}_"]
            hint = f"did you mean {near[0]}?" if near else SEE_KEYS
            hint = did_you_mean(name, known, hint)
            raise InputError(f"the config has no key {name}{hint}")
        read = read_value(f"config.{name}", text, kind_of(known[name]))
        parent, dot, child = key.partition(".")
        own = values.setdefault(section, {})
        own[parent] = {**own[parent], child: read} if dot else read
    return values


def describe_keys(values: Values) -> str:
    """Every key of a config with its value and meaning, as text.

    Raises InputError for a section that is no mapping.
    """
    values, lines = ConfigRequest(values).resolve(None), []
    width = get_terminal_size().columns - 6
    for section, kind in sections_of(values).items():
        lines.append(f"{section}: {inspect.getdoc(kind)}")
        for key, field in kind.keys(values.get(section, {})).items():
            value = values.get(section, {})
            for part in key.split("."):
                value = value.get(part)
            free = " May change on resume." if field.metadata["free"] else ""
            lines.append(f"  --config.{section}.{key}={value}")
            meaning = fill(f"{field.metadata['meaning']}{free}", width)
            lines.append(indent(meaning, " " * 6))
        lines.append("")
    return "\n".join(lines)


class Record(NamedTuple):
    """What config.json says of a run."""

    config: Config
    direction: str  # such as "en-de"
    text: str | None  # hash of the prepared text; None: no text is prepared
    tokenizer: dict[str, Any]  # "sha256", and "vocab_size"
    versions: dict[str, str]  # of packages
    run: str = ""  # a hash of what may not change, and a random number
    imported: str = ""  # the folder's name of the checkpoint that it began with


def folder_of(path: Path) -> Path:
    """Return the folder of a run: `path`, or the one inside an export for CTranslate2.

    Raises InputError for a model of CTranslate2 without such a folder.
    """
    if not (path / MODEL).is_file():
        return path
    if not (path / EXPORTED / RECORD).is_file():
        raise InputError(
            f"{path} is a model of CTranslate2 without the folder {EXPORTED}/, which "
            "jaxformer export writes; export the run again"
        )
    return path / EXPORTED


def read_record(folder: Path) -> Record | None:
    """Read the record of a run's folder; None if there is none yet.

    Raises InputError if it is edited or damaged, or the config of an export.
    """
    if not entries(folder, RECORD):
        return None
    file = folder / RECORD
    try:
        values = json.loads(file.read_bytes())
        if dict.pop(values, "sha256", None) == hash_of(values):
            return _parsed(file, values)
        if not values.keys().isdisjoint(_OF_EXPORTS):
            raise InputError(
                f"{folder} is an export for another program, and no run; give the run "
                "that it was made from"
            )
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise InputError(
        f"{file} is damaged or was edited; put a copy back, or use another run folder "
        "(values change by --config.SECTION.KEY=VALUE)"
    )


def required_record(folder: Path) -> Record:
    """Read the record of a run. Raises InputError as `read_record`, or without one."""
    if (record := read_record(folder)) is not None:
        return record
    near = near_path(folder / RECORD, "give --config to train one")
    near = near.replace(f"{os.sep}{RECORD}?", "?")
    raise InputError(f"there is no run in {folder} (no {RECORD}){near}")


def _parsed(file: Path, values: dict[str, Any]) -> Record:
    try:
        given = translated(values["config"])
        for name, kind in sections_of(given).items():
            given[name] = kind.recorded(given[name])
        return Record(**{**values, "config": parse_config(given)})
    except InputError as error:
        raise InputError(
            f"{file} was written by another version ({error}); runs of earlier "
            f"versions are read by commit {LAST_TO_READ_OLDER}"
        ) from None


def hash_of(record: dict | list) -> str:
    """Return the hash of values that JSON can hold."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
