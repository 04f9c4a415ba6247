"""Parse the command line; imports little, so that help and mistakes are fast."""

import argparse
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jaxformer import __version__
from jaxformer.commands.flags import (
    CLUSTER,
    COMMANDS,
    COMMON,
    FLAGS,
    MODELS,
    REPLACED,
    TRANSLATION,
    Flag,
    paths,
)
from jaxformer.config.settings import check_bounds, read_value
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.evaluation import published
from jaxformer.runs.config_files import ConfigRequest, describe_keys, read_config_file
from jaxformer.system.errors import InputError, did_you_mean

USAGE = "jaxformer train --config=demo runs/demo"
HELP = """usage: jaxformer COMMAND [--config=FILE] RUN [flags]

Train and use the translation model of 'Attention Is All You Need'.

commands:
{commands}

  jaxformer COMMAND --help          flags of a command
  jaxformer --config=FILE --help    keys of a config, with their meanings
  jaxformer --version

RUN is the folder of a run. --mode=COMMAND and --workdir=RUN mean the same.

example: {usage}"""

_METAVARS = {int: "N", float: "X", Path: "PATH", paths: "PATH"}


class Arguments(NamedTuple):
    """A parsed command line: `flags` are the keyword arguments of the command."""

    mode: str
    cluster: dict[str, Any]
    flags: dict[str, Any]


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def parse(argv: Sequence[str]) -> Arguments:
    """Parse the arguments after the program's name. Raises InputError.

    Prints help or the version and raises SystemExit if that is asked for.
    """
    overrides, rest = _split_overrides(argv)
    chosen, words = _read_words(rest)
    if chosen.version:
        print(f"jaxformer {__version__}")
        raise SystemExit(0)
    mode = chosen.mode or (words.pop(0) if words else None)
    if mode is not None and mode not in COMMANDS:
        hint = did_you_mean(mode, COMMANDS, f"there are {', '.join(COMMANDS)}")
        raise InputError(f"there is no command {mode}{hint}")
    if chosen.help:
        print(_help(mode, chosen.config))
        raise SystemExit(0)
    mode = mode or "train"
    command = COMMANDS[mode]
    if "row" in command.flags and chosen.row is not None:
        published_config = published.row(chosen.row).config
        if chosen.config is not None:
            raise InputError(
                f"--row={chosen.row} stands for --config={published_config} already; "
                "leave out --config"
            )
        chosen.config = published_config
    given = _parse_flags(mode, rest)
    if words and given["workdir"] is None:
        given["workdir"] = _read(FLAGS["workdir"], words.pop(0))
    if words:
        raise InputError(
            f"{words[0]!r} is one word too many: jaxformer {mode} takes one run; other "
            f"values need a flag, see jaxformer {mode} --help"
        )
    if given["workdir"] is None and command.needs_workdir:
        example = USAGE if mode == "train" else f"jaxformer {mode} runs/demo"
        raise InputError(f"the run is missing; for example: {example}")
    values = None if chosen.config is None else read_config_file(chosen.config)
    request = ConfigRequest(values, tuple(overrides), given.pop("init_from", None))
    flags: dict[str, Any] = {"config": request}
    own = {name: given[name] for name in given.keys() & {"workdir", *command.flags}}
    if options := own.keys() & {*TRANSLATION}:
        # The run's config has the defaults of a translation's flags.
        chosen = {name: own.pop(name) for name in options}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        flags["options"] = TranslateRequest(chosen)
    if models := own.keys() & {*MODELS}:
        flags["models"] = ModelChoice(**{name: own.pop(name) for name in models})
    flags |= own
    return Arguments(mode, {name: given[name] for name in CLUSTER}, flags)


def _read_words(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read the flags that choose what to parse; return the words that are no flags.

    Raises InputError for a flag that no command has.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in ("mode", "config", *FLAGS):
        is_switch = name in FLAGS and FLAGS[name].kind is bool
        action = argparse.BooleanOptionalAction if is_switch else "store"
        parser.add_argument(f"--{name}", action=action)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    chosen, unknown = parser.parse_known_args(arguments)
    for flag in _flags_among(unknown):
        if hint := REPLACED.get(flag.removeprefix("--")):
            raise InputError(f"there is no flag {flag}: {hint}")
        known = [f"--{known}" for known in ("config", "mode", *FLAGS)]
        hint = did_you_mean(flag, known, "see jaxformer COMMAND --help")
        raise InputError(f"there is no flag {flag}{hint}")
    return chosen, [word for word in unknown if not word.startswith("-")]


def _flags_among(words: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("-")]


def _split_overrides(argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split arguments into pairs from --config.SECTION.KEY=VALUE, and the rest."""
    overrides, rest, remaining = [], [], iter(argv)
    for argument in remaining:
        if not argument.startswith("--config."):
            rest.append(argument)
            continue
        key, equals, value = argument.removeprefix("--config.").partition("=")
        if not equals:
            value = next(remaining, None)
            if value is None:
                raise InputError(f"{argument} lacks a value: write {argument}=VALUE")
        overrides.append((key, value))
    return overrides, rest


def _parse_flags(mode: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Parse the flags of one command; raise InputError for one of another."""
    names = (*COMMON, *COMMANDS[mode].flags)
    parsed, unknown = _parser(mode).parse_known_args(arguments)
    for flag in _flags_among(unknown):
        name = flag.removeprefix("--").removeprefix("no-")
        users = [other for other in COMMANDS if name in COMMANDS[other].flags]
        raise InputError(
            f"{flag} is not used by jaxformer {mode}; it is for {', '.join(users)}"
        )
    given = vars(parsed)
    for name in names:
        check_bounds(f"--{name}", given[name], FLAGS[name]._asdict())
    return given


def _parser(mode: str) -> _Parser:
    parser = _Parser(
        prog=f"jaxformer {mode} RUN",
        description=COMMANDS[mode].summary,
        add_help=False,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, 32, width=100),
    )
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument(
        "--config",
        metavar="FILE[:ROW]",
        help="Config file, such as configs/demo.py, or the name of one that comes with "
        "jaxformer, such as demo. --config.SECTION.KEY=VALUE changes a value; "
        "--config=FILE --help lists the keys.",
    )
    for name in (*COMMON, *COMMANDS[mode].flags):
        flag = FLAGS[name]
        meaning = flag.meaning.replace("%", "%%")
        if flag.kind is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(
                f"--{name}", action=action, default=flag.default, help=meaning
            )
            continue
        if flag.choices:
            meaning += f" One of {', '.join(flag.choices)}."
        if flag.default not in (None, ()):
            meaning += f" Default: {flag.default}."
        parser.add_argument(
            f"--{name}",
            type=partial(_read, flag),
            action=_Join if flag.default == () else "store",
            default=flag.default,
            metavar=_METAVARS.get(flag.kind, "TEXT"),
            help=meaning,
        )
    return parser


class _Join(argparse.Action):
    """Joins the lists of a flag that is given several times."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), *values))


def _read(flag: Flag, text: str) -> object:
    """Read the text of a flag; an empty path counts as not given."""
    if flag.kind is str and re.search("[\ud800-\udfff]", text):
        raise InputError(f"--{flag.name}={text} is not UTF-8; correct its encoding")
    if flag.kind in (int, float, str):
        return read_value(flag.name, text, (flag.kind, False))
    return flag.kind(text) if text else flag.default


def _help(mode: str | None, config: str | None) -> str:
    """The help of jaxformer, of one command, or of the keys of a config."""
    if config is not None:
        return describe_keys(read_config_file(config))
    if mode is not None:
        return _parser(mode).format_help()
    summaries = [f"  {name:<16} {each.summary}" for name, each in COMMANDS.items()]
    return HELP.format(commands="\n".join(summaries), usage=USAGE)
