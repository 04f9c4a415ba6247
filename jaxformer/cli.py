"""The command line: which command, with which arguments.

Imports nothing that takes long, so that help and mistakes are answered at once.
"""

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jaxformer import __version__, published
from jaxformer.config_files import ConfigRequest, describe_keys, read_config_file
from jaxformer.errors import InputError
from jaxformer.flags import CLUSTER, COMMANDS, COMMON, FLAGS, TRANSLATION, Flag
from jaxformer.settings import check_bounds

USAGE = "jaxformer --config=configs/demo.py --workdir=runs/demo"


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
    first = _Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--mode", default="train")
    first.add_argument("--config")
    first.add_argument("--row")
    first.add_argument("-h", "--help", action="store_true")
    first.add_argument("--version", action="store_true")
    chosen, _ = first.parse_known_args(rest)
    if chosen.version:
        print(f"jaxformer {__version__}")
        raise SystemExit(0)
    if chosen.mode not in COMMANDS:
        raise InputError(
            f"--mode={chosen.mode} is none of the commands: {', '.join(COMMANDS)}"
        )
    if chosen.help:
        print(_help(chosen.mode if "--mode" in " ".join(rest) else None, chosen.config))
        raise SystemExit(0)
    command = COMMANDS[chosen.mode]
    if "row" in command.flags and chosen.row is not None:
        chosen.config = _config_of_row(chosen.row, chosen.config)
    given = vars(_parse_flags(chosen.mode, rest))
    if given["workdir"] is None and command.needs_workdir:
        raise InputError(f"--workdir is missing; for example: {USAGE}")
    values = None if chosen.config is None else read_config_file(chosen.config)
    flags: dict[str, Any] = {
        "config": ConfigRequest(values, tuple(overrides)),
        "workdir": None if given["workdir"] is None else Path(given["workdir"]),
    }
    for name in command.flags:
        # What a translation may be asked for has its defaults in TranslateOptions.
        if given[name] is not None or name not in TRANSLATION:
            flags[name] = given[name]
    return Arguments(chosen.mode, {name: given[name] for name in CLUSTER}, flags)


def _split_overrides(argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Take --config.SECTION.KEY=VALUE out of the arguments: as pairs, and the rest."""
    overrides, rest, waiting = [], [], iter(argv)
    for argument in waiting:
        if not argument.startswith("--config."):
            rest.append(argument)
            continue
        key, equals, value = argument.removeprefix("--config.").partition("=")
        if not equals:
            value = next(waiting, None)
            if value is None:
                raise InputError(f"{argument} lacks a value: write {argument}=VALUE")
        overrides.append((key, value))
    return overrides, rest


def _parse_flags(mode: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse with the flags of one command; refuse every other word."""
    names = (*COMMON, *COMMANDS[mode].flags)
    parser = _parser(mode, names)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        word = unknown[0]
        name = word.partition("=")[0].removeprefix("--").removeprefix("no-")
        if not word.startswith("-"):
            raise InputError(f"{word!r} is no flag; flags look like --mode=train")
        if name in FLAGS:
            users = [other for other in COMMANDS if name in COMMANDS[other].flags]
            raise InputError(
                f"--{name} is not used by --mode={mode}; it is for {', '.join(users)}"
            )
        near = difflib.get_close_matches(name, ("config", "mode", *names), n=1)
        hint = f"did you mean --{near[0]}?" if near else f"see --mode={mode} --help"
        raise InputError(f"there is no flag --{name}; {hint}")
    for name in names:
        value, flag = getattr(given, name), FLAGS[name]
        rule = {"least": flag.least, "choices": flag.choices}
        check_bounds(f"--{name}", value, rule)
    return given


def _parser(mode: str, names: Sequence[str]) -> _Parser:
    """A parser of the flags called `names`."""
    parser = _Parser(
        prog=f"jaxformer --mode={mode}",
        description=COMMANDS[mode].summary,
        add_help=False,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, 32, width=100),
    )
    parser.add_argument("--mode", metavar="COMMAND", help="See jaxformer --help.")
    parser.add_argument(
        "--config",
        metavar="FILE[:ROW]",
        help="Config file, such as configs/demo.py, or the name of one that comes with "
        "jaxformer, such as demo. --config.SECTION.KEY=VALUE changes a value; "
        "--config=FILE --help lists the keys.",
    )
    for flag in map(FLAGS.get, names):
        meaning = flag.meaning.replace("%", "%%")
        if flag.kind is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(
                f"--{flag.name}", action=action, default=flag.default, help=meaning
            )
            continue
        if flag.choices:
            meaning += f" One of {', '.join(flag.choices)}."
        if flag.default not in (None, ""):
            meaning += f" Default: {flag.default}."
        metavar = {int: "N", float: "X", str: "TEXT"}[flag.kind]
        parser.add_argument(
            f"--{flag.name}",
            type=_converter(flag),
            default=flag.default,
            metavar=metavar,
            help=meaning,
        )
    return parser


def _converter(flag: Flag) -> Any:
    """A function from text to the flag's type."""

    def convert(text: str) -> Any:
        try:
            return flag.kind(text)
        except ValueError:
            what = "a whole number" if flag.kind is int else "a number"
            raise InputError(f"--{flag.name}={text} is not {what}") from None

    return convert


def _config_of_row(name: str, config: str | None) -> str:
    """The config that --row=NAME stands for. Raises InputError."""
    published_config = published.row(name).config
    if config is not None:
        raise InputError(
            f"--row={name} stands for --config={published_config} already; leave out "
            "--config"
        )
    return published_config


def _help(mode: str | None, config: str | None) -> str:
    """Help of the whole, of one command, or of the keys of a config."""
    if config is not None:
        return describe_keys(read_config_file(config))
    if mode is not None:
        return _parser(mode, (*COMMON, *COMMANDS[mode].flags)).format_help()
    lines = [
        "usage: jaxformer --mode=COMMAND --config=FILE --workdir=FOLDER [flags]",
        "",
        "Train and use the translation model of 'Attention Is All You Need'.",
        "",
        "commands:",
        *(f"  {name:<10} {command.summary}" for name, command in COMMANDS.items()),
        "",
        "  jaxformer --mode=COMMAND --help    flags of a command",
        "  jaxformer --config=FILE --help     keys of a config, with their meanings",
        "  jaxformer --version",
        "",
        f"example: {USAGE}",
    ]
    return "\n".join(lines)
