"""The command line: flags by command, config values, help, and refusals in one line."""

import inspect
from pathlib import Path

import pytest

from jaxformer import cli, config_files
from jaxformer.errors import InputError
from jaxformer.flags import CLUSTER, COMMANDS, COMMON, FLAGS, TRANSLATION
from jaxformer.main import command
from jaxformer.serving.batching import Limits

ROOT = Path(__file__).parents[1]
CONFIG = f"--config={ROOT / 'configs' / 'multi30k.py'}"
WORKDIR = "--workdir=runs/x"
# A value that each flag accepts.
VALUES = {
    flag.name: flag.choices[0]
    if flag.choices
    else {int: "20", float: "0.5"}.get(flag.kind, "x")
    for flag in FLAGS.values()
}


def override(text):
    return [CONFIG, WORKDIR, f"--config.{text}"]


def given(name):
    return f"--{name}" if FLAGS[name].kind is bool else f"--{name}={VALUES[name]}"


@pytest.mark.parametrize("mode", COMMANDS)
def test_every_flag_is_read_or_refused(mode):
    for name in FLAGS.keys() - {"workdir", "row"}:
        argv = [f"--mode={mode}", WORKDIR, given(name)]
        if name in (*COMMANDS[mode].flags, *CLUSTER):
            arguments = cli.parse(argv)
            assert name in {**arguments.flags, **arguments.cluster}
        else:
            users = [each for each in COMMANDS if name in COMMANDS[each].flags]
            with pytest.raises(InputError) as refused:
                cli.parse(argv)
            assert str(refused.value) == (
                f"--{name} is not used by --mode={mode}; it is for {', '.join(users)}"
            )


@pytest.mark.parametrize("mode", COMMANDS)
def test_a_command_takes_exactly_its_flags(mode):
    """Flags of a translation, and of the server's limits, are passed on."""
    parameters = inspect.signature(command(mode).run).parameters.values()
    named = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    passed_on = {*COMMANDS[mode].flags} - named
    assert named <= {"config", "workdir", *COMMANDS[mode].flags}
    limits = Limits.__annotations__.keys()
    assert passed_on <= {*TRANSLATION, "checkpoint", "ensemble", *limits}
    assert len(named) + bool(passed_on) == len(parameters)


def test_every_flag_is_used_by_a_command():
    used = {name for each in COMMANDS.values() for name in each.flags}
    assert used | set(COMMON) == FLAGS.keys()


def test_training_is_the_default_and_nothing_else_is_assumed():
    arguments = cli.parse([CONFIG, WORKDIR])
    assert arguments.mode == "train"
    assert arguments.flags["workdir"] == Path("runs/x")
    assert arguments.flags["config"].values["data"]["corpus"] == "directory"
    assert arguments.cluster == {
        "coordinator_address": None, "num_processes": None, "process_id": None,
        "join_timeout": 300, "peer_timeout": 100,
    }  # fmt: skip


def test_flags_arrive_with_their_types():
    flags = cli.parse(
        ["--mode=evaluate", WORKDIR, "--source=a", "--reference", "b", "--alpha=0",
         "--checkpoint=average:3", "--beam_size=1", "--long_lines=refuse",
         "--ensemble=c, d", "--output="]
    ).flags  # fmt: skip
    assert flags["config"] == config_files.ConfigRequest(None, ())
    assert (flags["source"], flags["reference"]) == (Path("a"), Path("b"))
    assert (flags["ensemble"], flags["output"]) == ([Path("c"), Path("d")], None)
    assert flags["checkpoint"] == "average:3"
    assert (flags["beam_size"], flags["alpha"]) == (1, 0.0)
    assert type(flags["alpha"]) is float
    assert flags["long_lines"] == "refuse"
    assert not {"batch_tokens", "temperature"} & flags.keys()  # the run decides


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([CONFIG], "--workdir is missing; for example: jaxformer --config="),
        (["--wrkdir=x"], "there is no flag --wrkdir; did you mean --workdir?"),
        ([WORKDIR, "--mode=trian"], "--mode=trian is none of the commands: train, "),
        ([WORKDIR, "--mode=translate", "a.txt"], "'a.txt' is no flag"),
        ([WORKDIR, "--mode=translate", "--beam_size=w"], "=w is not a whole"),
        ([WORKDIR, "--mode=translate", "--beam_size=0"], "--beam_size is 0; it"),
        ([WORKDIR, "--mode=translate", "--alpha=x"], "--alpha=x is not a number"),
        ([WORKDIR, "--mode=translate", "--alpha=nan"], "--alpha is nan; it must be"),
        ([WORKDIR, "--mode=translate", "--checkpoint"], "--checkpoint"),
        ([WORKDIR, "--mode=translate", "--long_lines=cut"], "use one of split,"),
        ([WORKDIR, "--num_processes=0"], "--num_processes is 0; it must be at least 1"),
        ([WORKDIR, "--peer_timeout=9"], "--peer_timeout is 9; it must be at least 10"),
        ([WORKDIR, "--config.training.steps"], "--config.training.steps=VALUE"),
        (["--mode=reproduce", "--row=table3/F", WORKDIR], "row 'table3/F'"),
        (
            ["--mode=reproduce", "--row=table3/E", WORKDIR, CONFIG],
            "--row=table3/E stands for --config=table3:E already",
        ),
        ([WORKDIR, "--config=gone.py"], "no config file gone.py; there are demo, "),
        ([WORKDIR, "--config=dmo"], "no config file dmo; did you mean demo?"),
        ([WORKDIR, "--config=elsewhere/demo.py"], "no config file elsewhere/demo.py"),
        ([WORKDIR, "--config=demo:big"], "demo has no rows; leave out :big"),
        ([WORKDIR, "--config=table3:F"], "Table 3 has no row 'F'"),
        (override("model.d_modle=3"), "no key model.d_modle; did you mean model.d_mo"),
        (override("modle.d_model=3"), "no key modle.d_model; did you mean model.d_mo"),
        (override("model=3"), "no key model"),
        (override("model.d_model=big"), "model.d_model=big is not a whole number"),
        (override("model.d_model=1.5"), "model.d_model=1.5 is not a whole number"),
        (override("model.norm_first=yes"), "norm_first=yes is not True or False"),
        (override("training.ema_decay=most"), "=most is not a number or None"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_in_one_line(tmp_path, monkeypatch, argv, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        cli.parse(argv).flags["config"].resolve(None)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def resolve(*overrides):
    request = cli.parse([CONFIG, WORKDIR, *overrides]).flags["config"]
    return request.resolve(None)


def test_values_are_replaced_with_the_type_of_their_key():
    values = resolve(
        "--config.model.d_model=64", "--config.model.dropout=0",
        "--config.model.norm_first=true", "--config.training.ema_decay=0.5",
        "--config.data.directory", "some where",
    )  # fmt: skip
    assert values["model"]["d_model"] == 64
    assert values["model"]["dropout"] == 0.0
    assert values["model"]["norm_first"] is True
    assert values["training"]["ema_decay"] == 0.5
    assert values["data"]["directory"] == "some where"
    assert resolve("--config.training.ema_decay=None")["training"]["ema_decay"] is None
    assert resolve()["model"]["d_model"] == 128
    request = cli.parse([WORKDIR, "--config.training.steps=7"]).flags["config"]
    recorded = resolve()  # used without a file
    assert request.resolve(recorded)["training"]["steps"] == 7
    assert recorded["training"]["steps"] == 12_000


@pytest.mark.parametrize("name", ["demo", "configs/demo.py", "demo.py", "table3:E"])
def test_configs_of_jaxformer_are_found_from_anywhere(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert config_files.read_config_file(name)["training"]["seed"] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def get_config(:\n", "SyntaxError"),
        ("import not_there\n", "not_there"),
        ("def get_config():\n    return {}['a']\n", "KeyError: 'a'"),
        ("def get_config():\n    return {}\n", "to_dict"),
    ],
)
def test_a_config_file_that_fails_is_one_line(tmp_path, text, said):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        config_files.read_config_file(str(file))
    assert f"the config file {file} fails: " in str(refused.value)
    assert said in str(refused.value)


def help_of(capsys, *argv):
    with pytest.raises(SystemExit) as end:
        cli.parse([*argv, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_lists_commands_flags_and_config_keys(capsys):
    text = help_of(capsys)
    for name, each in COMMANDS.items():
        assert f"  {name:<10} {each.summary}\n" in text
    for mode, each in COMMANDS.items():
        text = help_of(capsys, f"--mode={mode}")
        for name in FLAGS:
            is_there = f"--{name} " in text or f"--{name}\n" in text
            assert is_there == (name in (*COMMON, *each.flags)), (mode, name)
    text = help_of(capsys, CONFIG)
    assert "  --config.model.d_model=128\n" in text
    steps = "  --config.training.steps=12000\n      Updates of the whole run. May"
    assert steps in text
