"""The command line: flags in, one mode run, exit code out.

    python -m jaxformer.main --config=configs/wmt_base.py --workdir=runs/wmt
    python -m jaxformer.main --mode=translate --workdir=runs/wmt < text > translation

Every mode but translate ends stdout with one line of JSON; everything else that is
said goes to stderr. What the user got wrong is one line there, and exit code 2.
"""

import difflib
import errno
import importlib
import itertools
import json
import keyword
import logging
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow only feeds data

from absl import flags
from ml_collections import config_flags

import configs
from jaxformer import processes, published
from jaxformer.commands.options import FLAGS, MODES, Flag, Options
from jaxformer.errors import InputError
from jaxformer.processes import Cluster

USAGE = "python -m jaxformer.main --config=configs/demo.py --workdir=runs/demo"

logger = logging.getLogger("jaxformer")  # this module is __main__

_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")  # --config.SECTION.KEY=VALUE
# What a full disk, a full quota, a read-only disk and a limit on files are called.
_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def define_flags(argv: Sequence[str]) -> flags.FlagValues:
    """The flags, not parsed yet; by `argv`, as keys of the config are flags too."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file(
        "config",
        None,
        "What to run, a file such as configs/wmt_base.py; --config.SECTION.KEY=VALUE "
        "changes a value of it.",
        flag_values=values,
        sys_argv=list(argv),
    )
    flags.DEFINE_enum(
        "mode", "train", list(MODES), "What to do with it.", flag_values=values
    )
    for flag in itertools.chain(*FLAGS.values()):
        _define(flag, values)
    flags.DEFINE_bool(
        "help", False, "Show this help.", flag_values=values, short_name="h"
    )
    return values


def _define(flag: Flag, values: flags.FlagValues) -> None:
    """Tell absl of one flag."""
    common = (flag.name, flag.default)
    if flag.choices:
        flags.DEFINE_enum(*common, flag.choices, flag.meaning, flag_values=values)
    elif flag.kind in (int, float):
        define = flags.DEFINE_integer if flag.kind is int else flags.DEFINE_float
        define(*common, flag.meaning, flag_values=values, lower_bound=flag.least)
    else:
        define = flags.DEFINE_bool if flag.kind is bool else flags.DEFINE_string
        define(*common, flag.meaning, flag_values=values)


def parse(argv: Sequence[str]) -> Options:
    """Read the command line. Raises InputError, naming the nearest right word."""
    argv = with_config_of_row(argv)
    values = define_flags(argv)
    try:
        rest = values(list(argv))[1:]
        config = values.config.to_dict() if values["config"].present else None
    except InputError:  # a config file's own words
        raise
    except Exception as error:  # absl, ml_collections and config files raise many kinds
        raise InputError(_explain(error, argv)) from error
    if values.help:
        print(__doc__, values.get_help(), sep="\n")
        raise SystemExit(0)
    if rest:
        raise InputError(f"{rest[0]!r} is no flag; flags look like --mode=train")
    needs_none = values.mode == "check" or (
        values.mode == "reproduce" and not values.row
    )
    if not values.workdir and not needs_none:
        raise InputError(f"--workdir is missing; for example: {USAGE}")
    given = {
        group: {f.name: values[f.name].value for f in members}
        for group, members in FLAGS.items()
    }
    alone, cluster = given.pop(None), given.pop("cluster")
    alone["workdir"] = Path(values.workdir) if values.workdir else None
    return Options(
        mode=values.mode,
        config=config,
        config_file=_config_without_overrides(argv) if values.row else None,
        cluster=Cluster(**cluster),
        **alone,
        **{
            group: {name: value for name, value in chosen.items() if value is not None}
            for group, chosen in given.items()
        },
    )


def with_config_of_row(argv: Sequence[str]) -> list[str]:
    """The command line with the --config that --row=NAME stands for, if it has one.

    Raises InputError for a row that nobody published, and for both flags together.
    """
    name = _value_of(argv, "row")
    if name is None:
        return list(argv)
    config = published.row(name).config
    if _value_of(argv, "config") is not None:
        raise InputError(
            f"--row={name} is --config=configs/{config.replace(':', '.py:')} already: "
            "leave out --config; --config.SECTION.KEY=VALUE may change it"
        )
    file, colon, rest = config.partition(":")
    path = Path(configs.__path__[0]) / f"{file}.py"
    return [argv[0], f"--config={path}{colon}{rest}", *argv[1:]]


def _config_without_overrides(argv: Sequence[str]) -> dict:
    """What the config file itself says."""
    values = define_flags([])
    values(["", f"--config={_value_of(argv, 'config')}"])
    return values.config.to_dict()


def _explain(error: Exception, argv: Sequence[str]) -> str:
    """One line for what absl, ml_collections or a config file says in several."""
    overrides = [match[1] for arg in argv[1:] if (match := _OVERRIDE.match(arg))]
    choice = _value_of(argv, "config")
    if choice is None:
        if overrides:
            return f"--config.{overrides[0]}=... needs --config=FILE before it"
        return _one_line(error)
    file = choice.partition(":")[0]
    if not Path(file).is_file():
        return f"there is no config file {file!r}; configs/ has those of jaxformer"
    try:
        config = _config_without_overrides(argv)
    except Exception as failure:
        return f"the config file {file} fails: {_last_line(failure)}"
    unknown = filter(None, (_unknown_key(config, key) for key in overrides))
    return next(unknown, None) or _one_line(error)


def _value_of(argv: Sequence[str], flag: str) -> str | None:
    """The value of --flag, if it is given one."""
    for index, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            return value if equals else next(iter(argv[index + 1 :]), None)
    return None


def _unknown_key(config: dict, key: str) -> str | None:
    """Say which part of "model.d_model" the config does not have, if one."""
    within, path = config, []
    for part in key.split("."):
        if not isinstance(within, dict):
            return f"config.{'.'.join(path)} is a value: it has no key {part!r}"
        if part not in within:
            near = difflib.get_close_matches(part, within, n=1)
            hint = f"did you mean {'.'.join([*path, *near])}?" if near else ""
            names = f"there are {', '.join(within)}"
            return f"the config has no key {'.'.join([*path, part])}; {hint or names}"
        within, path = within[part], [*path, part]
    return None


def _one_line(error: Exception) -> str:
    """The first line of a message, which says what; the rest repeats or advises."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _last_line(error: Exception) -> str:
    """What a config file raised; ml_collections hands some on as a traceback's text."""
    error = error.__cause__ or error
    lines = str(error).strip().splitlines() or [""]
    is_traceback = any(line.startswith("Traceback") for line in lines)
    return lines[-1] if is_traceback else f"{type(error).__name__}: {lines[-1]}"


def _report_thread(failed: threading.ExceptHookArgs) -> None:
    """A background thread of a library ended: a line, where Python has a traceback."""
    kind, error = failed.exc_type.__name__, failed.exc_value
    name = failed.thread.name if failed.thread else "?"
    logger.warning("the thread %s ended with %s: %s", name, kind, error)


def _start_logging() -> None:
    """Send what rooms report to stderr, one line each; libraries only warn."""
    threading.excepthook = _report_thread
    logging.basicConfig(
        stream=sys.stderr, format="%(message)s", level=logging.WARNING, force=True
    )
    logging.getLogger("jaxformer").setLevel(logging.INFO)


def _speak_for_all() -> None:
    """Of several processes the first one reports, and the others only warn."""
    if not processes.is_first():
        logging.basicConfig(
            stream=sys.stderr,
            format=f"process {processes.index()}: %(message)s",
            level=logging.WARNING,
            force=True,
        )
        logging.getLogger("jaxformer").setLevel(logging.WARNING)
    if processes.are_several():
        logger.info("%s", processes.topology())


def run(options: Options) -> dict | None:
    """Run one mode; returns what it has to say in JSON."""
    name = f"{options.mode}_" if keyword.iskeyword(options.mode) else options.mode
    return importlib.import_module(f"jaxformer.commands.{name}").run(options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    code = 1
    try:
        code = _main(sys.argv if argv is None else argv)
    except Exception:
        if not processes.are_several():
            raise
        traceback.print_exc()
        processes.await_news_of_peers()
    if processes.are_several():
        processes.end(code)
    return code


def _main(argv: Sequence[str]) -> int:
    """Run the command line; errors of the user's become a line and a code here."""
    try:
        options = parse(argv)
        _start_logging()
        processes.join(options.cluster)
        _speak_for_all()
        result = run(options)
        if result is not None and processes.is_first():
            print(json.dumps(_finite(result)), flush=True)
        processes.leave()
    except InputError as error:
        processes.complain(error)
        return 2
    except BrokenPipeError:  # whoever read the output has enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        where = f"{error.filename}: " if error.filename else ""
        processes.complain(
            f"{where}{error.strerror}; make room, or make it writable, and start again"
        )
        return 2
    except KeyboardInterrupt:
        processes.complain("interrupted")
        return 130
    return 0


def _finite(result: dict) -> dict:
    """JSON has no NaN and no infinity, which a diverged run can end with: null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in result.items()
    }


if __name__ == "__main__":
    sys.exit(main())
