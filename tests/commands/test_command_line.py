"""The command line: flags by command, config values, help, and refusals in one line."""

import inspect
import re
import sys
from pathlib import Path

import pytest

from jaxformer.commands import command_line
from jaxformer.commands.flags import (
    CLUSTER,
    COMMANDS,
    COMMON,
    FLAGS,
    MODELS,
    REPLACED,
    TRANSLATION,
)
from jaxformer.decoding.options import ModelChoice
from jaxformer.main import command
from jaxformer.runs import config_files
from jaxformer.system.errors import InputError

ROOT = Path(__file__).parents[2]
CONFIG = f"--config={ROOT / 'configs' / 'multi30k.py'}"
WORKDIR = "--workdir=runs/x"


def given(name):
    """A flag with a value that it accepts."""
    flag = FLAGS[name]
    most = 0.5 if flag.most is None else min(0.5, flag.most)
    values = {int: "20", float: str(most)}
    value = flag.choices[0] if flag.choices else values.get(flag.kind, "x")
    return f"--{name}" if flag.kind is bool else f"--{name}={value}"


@pytest.mark.parametrize("mode", COMMANDS)
def test_every_flag_is_read_or_refused(mode):
    for name in FLAGS.keys() - {"workdir", "row"}:
        argv = [mode, WORKDIR, given(name)]
        if name in (*COMMANDS[mode].flags, *CLUSTER):
            arguments = command_line.parse(argv)
            named = {**arguments.flags, **arguments.cluster}
            named["init_from"] = named["config"].init_from
            if name in MODELS:
                named = vars(named["models"])
            elif name in TRANSLATION:
                named = named["options"].given
            assert named[name] is not None
        else:
            users = [each for each in COMMANDS if name in COMMANDS[each].flags]
            said = f"not used by jaxformer {mode}; it is for {', '.join(users)}"
            with pytest.raises(InputError, match=f"^--{name} is {said}$"):
                command_line.parse(argv)


@pytest.mark.parametrize("mode", COMMANDS)
def test_a_command_takes_exactly_its_flags(mode):
    """Those of a translation and of its models are two objects."""
    parameters = inspect.signature(command(mode).run).parameters.values()
    assert all(each.kind is each.KEYWORD_ONLY for each in parameters)
    flags = {*COMMANDS[mode].flags} - {"init_from"}  # in `config`
    objects = {"options": {*TRANSLATION}, "models": {*MODELS}}
    expected = {"config", "workdir"} | {k for k, v in objects.items() if v & flags}
    expected |= flags.difference(*objects.values())
    assert {each.name for each in parameters} | {"workdir"} == expected


@pytest.mark.parametrize(
    "words",
    [
        "serve runs/x --listen 9 --no-split_sentences --config.model.d_ff 3",
        "--listen 9 serve --no-split_sentences runs/x --config.model.d_ff 3",
        "--config.model.d_ff 3 --no-split_sentences --listen=9 serve runs/x",
        "--mode=serve --listen 9 runs/x --no-split_sentences --config.model.d_ff=3",
        "serve --workdir=runs/x --listen 9 --no-split_sentences --config.model.d_ff=3",
    ],
)
def test_the_command_and_the_run_are_words_at_any_place(words):
    found, flags = command_line.parse(words.split()), "--mode=serve --workdir=runs/x"
    flags += " --listen=9 --no-split_sentences --config.model.d_ff=3"
    assert found == command_line.parse(flags.split())
    assert (found.mode, found.flags["workdir"]) == ("serve", Path("runs/x"))


def test_training_is_the_default_and_nothing_else_is_assumed():
    arguments = command_line.parse([CONFIG, WORKDIR])
    assert arguments.mode == "train"
    assert arguments.flags["workdir"] == Path("runs/x")
    assert arguments.flags["config"].values["data"]["corpus"] == "directory"
    timeouts = {"peer_timeout": 100}
    assert arguments.cluster == {**dict.fromkeys(CLUSTER), **timeouts}


def test_flags_arrive_with_their_types():
    flags = command_line.parse(
        ["--mode=evaluate", WORKDIR, "--reference", "b", "--alpha=0", "--beam_size=1",
         "--checkpoint=average:3", "--ensemble=c, d", "--output="]
    ).flags  # fmt: skip
    models = ModelChoice(checkpoint="average:3", ensemble=(Path("c"), Path("d")))
    expected = {
        "config": config_files.ConfigRequest(None, ()), "reference": Path("b"),
        "output": None, "models": models,
    }  # fmt: skip
    assert expected.items() <= flags.items()
    given = flags["options"].given  # the run decides the others
    assert given == {"beam_size": 1, "alpha": 0.0}
    assert type(given["alpha"]) is float
    twice = ["--ensemble=a,b", "--ensemble=c", "--choose=d,s3://e:2"]
    twice = ["--mode=translate", WORKDIR, *twice, "--comet=f,g"]
    models = command_line.parse(twice).flags["models"]
    assert models.ensemble == (Path("a"), Path("b"), Path("c"))
    assert models.choose.rerankers == ((Path("d"), 1.0), (Path("s3://e"), 2.0))
    assert models.comet == (Path("f"), Path("g"))


@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_flag_says_what_replaces_it(name):
    assert name not in FLAGS
    with pytest.raises(InputError, match=f"^there is no flag --{name}; use") as refused:
        command_line.parse([WORKDIR, f"--{name}=1"])
    named = re.findall(r"--([a-z_]+)(?!\S*\.)\b", str(refused.value))
    assert {*named} <= {*FLAGS, name, "config"}


def resolve(*overrides):
    arguments = command_line.parse([CONFIG, WORKDIR, *overrides])
    return arguments.flags["config"].resolve(None)


def test_values_are_replaced_with_the_type_of_their_key():
    changes = {
        "model.d_model": ("64", 64), "model.dropout": ("0", 0.0),
        "model.norm_first": ("true", True), "training.ema_decay": ("0.5", 0.5),
        "optimizer.clip_norm": ("None", None), "data.directory": ("some where",) * 2,
    }  # fmt: skip
    flags = (f"--config.{name}={text}" for name, (text, _) in changes.items())
    values, recorded = resolve(*flags), resolve()
    for name, (_, expected) in changes.items():
        section, key = name.split(".")
        found = values[section][key]
        assert (found, type(found)) == (expected, type(expected)), name
    assert recorded["model"]["d_model"] == 128
    arguments = command_line.parse([WORKDIR, "--config.training.steps", "7"])
    request = arguments.flags["config"]
    assert request.resolve(recorded)["training"]["steps"] == 7  # without a file
    assert recorded["training"]["steps"] == 12_000


@pytest.mark.parametrize(
    "name", ["demo", "configs/demo.py", "demo.py", "table3:E", "a:b/own.py"]
)
def test_configs_of_jaxformer_are_found_from_anywhere(tmp_path, monkeypatch, name):
    (tmp_path / "a:b").mkdir()
    (tmp_path / "a:b" / "own.py").symlink_to(ROOT / "configs" / "demo.py")
    monkeypatch.chdir(tmp_path)
    assert config_files.read_config_file(name)["training"]["seed"] == 0


def test_a_config_file_imports_its_neighbour(tmp_path):
    (tmp_path / "a_neighbour.py").write_text("from jaxformer.configs import demo\n")
    text = "def get_config():\n    import a_neighbour\n"
    text += "    return a_neighbour.demo.get_config()\n"
    (tmp_path / "own.py").write_text(text)
    before = [*sys.path]
    values = config_files.read_config_file(str(tmp_path / "own.py"))
    assert (values["training"]["seed"], sys.path) == (0, before)
    assert "a_neighbour" not in sys.modules  # that of another folder is another


def help_of(capsys, *argv):
    with pytest.raises(SystemExit, match=r"^0$"):
        command_line.parse([*argv, "--help"])
    return capsys.readouterr().out


def test_help_lists_commands_flags_and_config_keys(capsys):
    text, used = " ".join(help_of(capsys).split()), {*COMMON}
    for mode, each in COMMANDS.items():
        assert f" {mode} {each.summary} " in text
        flags = help_of(capsys, mode)
        for name in FLAGS:
            is_there = f"--{name} " in flags or f"--{name}\n" in flags
            assert is_there == (name in (*COMMON, *each.flags)), (mode, name)
        used |= {*each.flags}
    assert used == FLAGS.keys()
    text = help_of(capsys, CONFIG)
    assert "  --config.model.d_model=128\n" in text
    steps = "  --config.training.steps=12000\n      Updates of the whole run. May"
    assert steps in text


@pytest.mark.parametrize("argv", [(), ("translate",), (CONFIG,)])
def test_help_is_as_wide_as_the_terminal(capsys, monkeypatch, argv):
    for width in 80, 100:
        monkeypatch.setenv("COLUMNS", str(width))
        lines = re.findall(r"(?m)^  (?!--).*", help_of(capsys, *argv))
        assert width - 9 <= max(map(len, lines)) <= width
