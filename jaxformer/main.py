"""The command line: flags in, one mode run, exit code out.

    python -m jaxformer.main --config=configs/wmt_base.py --workdir=runs/wmt
    python -m jaxformer.main --mode=translate --workdir=runs/wmt < text > translation

Every mode but translate ends stdout with one line of JSON; everything else that is
said goes to stderr. What the user got wrong is one line there, and exit code 2.
"""

import difflib
import importlib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow only feeds data

from absl import flags
from ml_collections import config_flags

from jaxformer.errors import InputError
from jaxformer.modes.options import MODES, Options

USAGE = "python -m jaxformer.main --config=configs/demo.py --workdir=runs/demo"

_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")  # --config.SECTION.KEY=VALUE
_TEXT_FLAGS = {
    "workdir": "The run's folder: made by training.",
    "source": "evaluate, score: file of source sentences.",
    "reference": "evaluate, score: file of translations.",
    "checkpoint": "Parameters to use: a step, latest, best, or average:N of the last "
    "N; by default the average that the config asks for.",
}


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
    for name, meaning in _TEXT_FLAGS.items():
        flags.DEFINE_string(name, None, meaning, flag_values=values)
    flags.DEFINE_string(
        "split",
        "test",
        "evaluate, score: split of the run's data, without --source.",
        flag_values=values,
    )
    for name, meaning in (
        ("beam_size", "Beam width, 1 is greedy."),
        ("batch_tokens", "Source tokens decoded at a time, padding included."),
    ):
        flags.DEFINE_integer(name, None, meaning, flag_values=values, lower_bound=1)
    flags.DEFINE_float(
        "alpha",
        None,
        "Exponent of the length penalty ((5 + n) / 6)^alpha of n output pieces.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "help", False, "Show this help.", flag_values=values, short_name="h"
    )
    return values


def parse(argv: Sequence[str]) -> Options:
    """Read the command line. Raises InputError, naming the nearest right word."""
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
    if not values.workdir and values.mode != "check":
        raise InputError(f"--workdir is missing; for example: {USAGE}")
    decoding = {
        key: values[key].value
        for key in ("beam_size", "alpha", "batch_tokens")
        if values[key].value is not None
    }
    return Options(
        mode=values.mode,
        config=config,
        workdir=Path(values.workdir) if values.workdir else None,
        source=values.source,
        reference=values.reference,
        split=values.split,
        checkpoint=values.checkpoint,
        decoding=decoding,
    )


def _explain(error: Exception, argv: Sequence[str]) -> str:
    """One line for what absl, ml_collections or a config file says in several."""
    overrides = [match[1] for arg in argv[1:] if (match := _OVERRIDE.match(arg))]
    choice = _config_choice(argv)
    if choice is None:
        if overrides:
            return f"--config.{overrides[0]}=... needs --config=FILE before it"
        return _one_line(error)
    file = choice.partition(":")[0]
    if not Path(file).is_file():
        return f"there is no config file {file!r}; configs/ has those of jaxformer"
    without_overrides = define_flags([])
    try:
        without_overrides(["", f"--config={choice}"])
        config = without_overrides.config.to_dict()
    except Exception as failure:
        return f"the config file {file} fails: {_last_line(failure)}"
    unknown = filter(None, (_unknown_key(config, key) for key in overrides))
    return next(unknown, None) or _one_line(error)


def _config_choice(argv: Sequence[str]) -> str | None:
    """The value of --config, if it has one."""
    for index, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name in ("--config", "-config"):
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


def _start_logging() -> None:
    """Send what rooms report to stderr, one line each; libraries only warn."""
    logging.basicConfig(
        stream=sys.stderr, format="%(message)s", level=logging.WARNING, force=True
    )
    logging.getLogger("jaxformer").setLevel(logging.INFO)


def run(options: Options) -> dict | None:
    """Run one mode; returns what it has to say in JSON."""
    return importlib.import_module(f"jaxformer.modes.{options.mode}").run(options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    try:
        options = parse(sys.argv if argv is None else argv)
        _start_logging()
        result = run(options)
        if result is not None:
            print(json.dumps(_finite(result)), flush=True)
    except InputError as error:
        print(f"jaxformer: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxformer: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _finite(result: dict) -> dict:
    """JSON has no NaN and no infinity, which a diverged run can end with: null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in result.items()
    }


if __name__ == "__main__":
    sys.exit(main())
