"""Parse the command line; imports little, so that help and mistakes are fast."""

import argparse
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, NamedTuple, NoReturn

from jaxformer import __version__
from jaxformer.commands.flags import (
    CLUSTER,
    COMMANDS,
    COMMON,
    FLAGS,
    MODELS,
    REPLACED,
    TAKE_EXPORTS,
    TRANSLATION,
    Flag,
    paths,
    read_address,
)
from jaxformer.config.settings import check_bounds, read_value
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.evaluation import published
from jaxformer.runs.config_files import (
    ConfigRequest,
    describe_keys,
    folder_of,
    parse_config,
    read_config_file,
    read_record,
    required_record,
)
from jaxformer.system.errors import InputError, did_you_mean
from jaxformer.system.files import require_output, require_readable, url_of
from jaxformer.text.sources import read_parts

USAGE = "jaxformer train --config=demo runs/demo"
HELP = """usage: jaxformer COMMAND [--config=FILE] RUN [flags]

Train and use the translation model of 'Attention Is All You Need'.

commands:
{commands}

  jaxformer COMMAND --help          flags of a command
  jaxformer --config=FILE --help    keys of a config, with their meanings
  jaxformer --version

RUN is the run folder. --mode=COMMAND and --workdir=RUN mean the same.

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
    parsed, unknown = _parser(FLAGS).parse_known_args(rest)
    given, words = vars(parsed), _words_among(unknown)
    if "version" in given:
        print(f"jaxformer {__version__}")
        raise SystemExit(0)
    mode = given.pop("mode", None) or (words.pop(0) if words else None)
    if mode is not None and mode not in COMMANDS:
        hint = did_you_mean(mode, COMMANDS, f"there are {', '.join(COMMANDS)}")
        raise InputError(f"there is no command {mode}{hint}")
    config = given.pop("config", None)
    if "help" in given:
        print(_help(mode, config))
        raise SystemExit(0)
    mode = mode or "train"
    command = COMMANDS[mode]
    given = _complete(mode, given)
    for word in words:
        if re.match(r"[a-z]+\.[a-z_]+=", word):
            raise InputError(f"{word!r} is no run; did you mean --config.{word}?")
    if words and given["workdir"] is None:
        given["workdir"] = _read(FLAGS["workdir"], words.pop(0))
    if words:
        hint = f"other values need a flag, see jaxformer {mode} --help"
        both = str(given["workdir"]), words[0]
        file = next((word for word in both if not Path(word).is_dir()), None)
        if file and "source" in command.flags:
            hint = f"did you mean --source={file}?"
        if file and "train" in command.flags:
            hint = "two files are one value, as in --train=train.en,train.de"
        if "compare" in command.flags:
            hint = f"did you mean --compare={words[0]}?"
        raise InputError(
            f"{words[0]!r} is one word too many: jaxformer {mode} takes one run; {hint}"
        )
    if (row := given.get("row")) is not None:
        published_config = published.row(row).config
        if config is not None:
            raise InputError(
                f"--row={row} stands for --config={published_config} already; leave "
                "out --config"
            )
        config = published_config
    needs_run = command.needs_workdir and not given.get("hypotheses")
    if needs_run and given["workdir"] is None:
        example = USAGE if mode == "train" else f"jaxformer {mode} runs/demo"
        raise InputError(f"the run is missing; for example: {example}; see --help")
    values = None if config is None else read_config_file(config)
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


def refuse_early(arguments: Arguments) -> None:
    """Raise InputErrors of the command that need no JAX, which takes long to import.

    Runs and texts on object stores are left to the command.
    """
    mode, flags = arguments.mode, arguments.flags
    names = "source", "reference", "prefix", "phrases", "placeholders"
    texts = [flags.get(name) for name in names]
    if hypotheses := flags.get("hypotheses"):
        texts = [*hypotheses, flags["source"], *paths(str(flags["reference"] or ""))]
    for path in texts:
        require_readable(path)
    if mode not in ("export", "translate_corpus"):  # whose output is a folder
        require_output(flags.get("output"))
    if "listen" in flags:
        read_address(flags["listen"])
    models = flags.get("models", ModelChoice())
    require_readable(models.glossary)
    others = [folder for folder, _ in models.choose.rerankers] if models.choose else []
    for folder in [*others, *models.ensemble, *flags.get("compare", ())]:
        if not url_of(folder):
            required_record(folder)
    request, workdir = flags["config"], flags["workdir"]
    if not COMMANDS[mode].opens_run or (workdir and url_of(workdir)):
        return
    of_run = folder_of(workdir) if workdir and mode in TAKE_EXPORTS else workdir
    record = of_run and read_record(of_run)
    if request.values is None and record is None:
        if (folder := request.init_from or workdir) is None or url_of(folder):
            return
        record = required_record(folder)
    config = parse_config(request.resolve(record and record.config.as_dict()))
    config.require_scores()
    if "options" in flags:
        flags["options"].resolve(config)
    if mode in ("train", "prepare") and not (workdir / "corpus").exists():
        for name, split, data in config.data.texts.values():
            places = data.corpus, data.directory, data.train, data.dev
            if split == "test" and (name or not data.test or data.has_text(split)):
                continue  # a corpus of data.corpora may inherit another kind's text
            if ":" not in "".join(places):  # TFDS, or a URL
                read_parts(data, split)


def _words_among(unknown: Sequence[str]) -> list[str]:
    """Return the words that are no flags; raise InputError for an unknown flag."""
    for flag in [word.partition("=")[0] for word in unknown if word[:1] == "-"]:
        if hint := REPLACED.get(flag.removeprefix("--")):
            raise InputError(f"there is no flag {flag}; use {hint}")
        known = [f"--{known}" for known in ("config", "mode", *FLAGS)]
        if "." in flag:
            raise InputError(f"there is no flag {flag}; keys are --config.SECTION.KEY")
        longer = [each for each in known if each.startswith(f"{flag}_")]
        otherwise = f"did you mean {longer[0]}?" if longer else "see --help"
        hint = did_you_mean(flag, known, otherwise)
        raise InputError(f"there is no flag {flag}{hint}")
    return [*unknown]


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


def _complete(mode: str, given: dict[str, Any]) -> dict[str, Any]:
    """Check the flags of a command, and add those that are not given."""
    names = (*COMMON, *COMMANDS[mode].flags)
    for name in given:
        if name not in names:
            users = [other for other in COMMANDS if name in COMMANDS[other].flags]
            raise InputError(
                f"--{name} is not used by jaxformer {mode}; it is for "
                f"{', '.join(users)}"
            )
        check_bounds(f"--{name}", given[name], FLAGS[name]._asdict())
    return {name: given.get(name, FLAGS[name].default) for name in names}


def _parser(names: Iterable[str], prog: str = "", summary: str = "") -> _Parser:
    """Make a parser that returns the flags that are given."""
    parser = _Parser(
        prog=prog,
        description=summary,
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=32),
    )
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    for word in (("-h", "--help"), ("--version",)):
        parser.add_argument(*word, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--config",
        metavar="FILE[:ROW]",
        help="Config file, such as configs/demo.py, or the name of one that comes with "
        "jaxformer, such as demo. --config.SECTION.KEY=VALUE changes a value; "
        "--config=FILE --help lists the keys.",
    )
    for name in names:
        flag = FLAGS[name]
        meaning = flag.meaning.replace("%", "%%")
        if flag.choices:
            meaning += f" One of {', '.join(flag.choices)}."
        if flag.default not in (None, ()):
            meaning += f" Default: {flag.default}."
        if flag.kind is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(f"--{name}", action=action, help=meaning)
            continue
        parser.add_argument(
            f"--{name}",
            type=partial(_read, flag),
            action=_Join if flag.default == () else "store",
            metavar=_METAVARS.get(flag.kind, "TEXT"),
            help=meaning,
        )
    return parser


class _Join(argparse.Action):
    """Joins the lists of a flag that is given several times."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        before = getattr(namespace, self.dest, ())
        setattr(namespace, self.dest, (*before, *values))


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
        names, summary = (*COMMON, *COMMANDS[mode].flags), COMMANDS[mode].summary
        return _parser(names, f"jaxformer {mode} RUN", summary).format_help()
    wrap = partial(fill, width=get_terminal_size().columns, subsequent_indent=" " * 19)
    summaries = (f"  {name:<16} {each.summary}" for name, each in COMMANDS.items())
    return HELP.format(commands="\n".join(map(wrap, summaries)), usage=USAGE)
