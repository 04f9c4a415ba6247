"""The command line before and around a mode: flags, config files, exit codes."""

import functools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer import main as main_module
from jaxformer.commands.options import MODES
from jaxformer.errors import InputError
from jaxformer.main import main, parse
from jaxformer.processes import Cluster

ROOT = Path(__file__).parents[1]
CONFIG = f"--config={ROOT / 'configs' / 'multi30k.py'}"
WORKDIR = "--workdir=runs/x"

# ml_collections loads a config file in an old way.
pytestmark = pytest.mark.filterwarnings(r"ignore:the load_module\(\)")


@pytest.fixture(autouse=True)
def own_logging(monkeypatch):
    """Let a command set up logging, and undo it."""
    room, root = logging.getLogger("jaxformer"), logging.root
    levels = room.level, root.level
    monkeypatch.setattr(root, "handlers", [])
    yield
    room.setLevel(levels[0])
    root.setLevel(levels[1])


@pytest.fixture
def refusal(capsys, tmp_path, monkeypatch):
    """Run a command line that must be refused; returns its one line on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        assert main(["jaxformer", *argv]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("jaxformer: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert not list(tmp_path.iterdir())
        return err

    return run


@pytest.fixture
def mode_that(monkeypatch):
    """Put a function in the place of the modes."""
    return functools.partial(monkeypatch.setattr, main_module, "run")


# Flags that mean something --------------------------------------------------------


def test_training_is_the_default_and_nothing_is_overridden():
    options = parse(["jaxformer", CONFIG, WORKDIR])
    assert options.mode == "train"
    assert options.workdir == Path("runs/x")
    assert options.config["data"]["corpus"] == "directory"
    assert options.split == "test"
    assert (options.source, options.reference, options.checkpoint) == (None,) * 3
    assert options.decoding == {}
    assert options.cluster == Cluster(
        coordinator_address=None, num_processes=None, process_id=None,
        join_timeout=300, peer_timeout=100,
    )  # fmt: skip


def test_flags_arrive_as_options():
    options = parse(
        [
            "jaxformer", "--mode=evaluate", WORKDIR, "--source=a", "--reference", "b",
            "--checkpoint=average:3", "--beam_size=1", "--alpha=0", "--batch_tokens=9",
        ]
    )  # fmt: skip
    assert options.config is None
    assert (options.mode, options.source, options.reference) == ("evaluate", "a", "b")
    assert options.checkpoint == "average:3"
    assert options.decoding == {"beam_size": 1, "alpha": 0.0, "batch_tokens": 9}


def test_flags_say_which_processes_take_part():
    options = parse(
        [
            "jaxformer", WORKDIR, "--coordinator_address=host:1234",
            "--num_processes=2", "--process_id=0", "--join_timeout=5",
            "--peer_timeout=10",
        ]
    )  # fmt: skip
    assert options.cluster == Cluster(
        coordinator_address="host:1234", num_processes=2, process_id=0,
        join_timeout=5, peer_timeout=10,
    )  # fmt: skip


def test_values_of_the_config_are_overridden_with_their_type():
    changes = (
        "--config.model.d_model=64", "--config.model.dropout=0",
        "--config.model.norm_first=true", "--config.training.ema_decay=0.5",
        "--config.data.directory", "some where",
    )  # fmt: skip
    config = parse(["jaxformer", CONFIG, WORKDIR, *changes]).config
    assert config["model"]["d_model"] == 64
    assert config["model"]["dropout"] == 0.0
    assert config["model"]["norm_first"] is True
    assert config["training"]["ema_decay"] == 0.5
    assert config["data"]["directory"] == "some where"


def test_a_second_command_does_not_remember_the_first():
    changed = "--config.model.d_model=64"
    parse(["jaxformer", CONFIG, WORKDIR, changed, "--mode=score", "--beam_size=7"])
    assert parse(["jaxformer", CONFIG, WORKDIR]).config["model"]["d_model"] == 128
    options = parse(["jaxformer", "--workdir=y"])
    assert (options.mode, options.config, options.split) == ("train", None, "test")
    assert (options.workdir, options.decoding) == (Path("y"), {})


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_flag_and_mode(capsys, flag):
    with pytest.raises(SystemExit) as end:
        main(["jaxformer", flag])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for name in ("config", "mode", "workdir", "source", "reference", "split",
                 "checkpoint", "beam_size", "alpha", "batch_tokens",
                 "coordinator_address", "num_processes", "process_id", "join_timeout",
                 "peer_timeout"):  # fmt: skip
        assert f"{name}:" in text
    assert "|".join(MODES) in "".join(text.split())  # which wraps lines


# Flags that mean nothing ----------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([CONFIG], "--workdir is missing"),
        ([CONFIG, "--workdir="], "--workdir is missing"),
        (["--wrkdir=x"], "workdir"),
        ([WORKDIR, "--mode=trian"], "train"),
        ([WORKDIR, "--mode=translate", "english.txt"], "'english.txt'"),
        ([WORKDIR, "--beam_size=wide"], "wide"),
        ([WORKDIR, "--beam_size=0"], "beam_size"),
        ([WORKDIR, "--batch_tokens=-1"], "batch_tokens"),
        ([WORKDIR, "--alpha=x"], "alpha"),
        ([WORKDIR, "--checkpoint"], "checkpoint"),
        ([WORKDIR, "--num_processes=0"], "num_processes"),
        ([WORKDIR, "--process_id=-1"], "process_id"),
        ([WORKDIR, "--join_timeout=0"], "join_timeout"),
        ([WORKDIR, "--peer_timeout=9"], "peer_timeout"),
        (
            [WORKDIR, "--num_processes=2", "--process_id=2"],
            "--process_id=2 is not one of --num_processes=2; they are numbered from 0 "
            "to 1",
        ),
        (
            [WORKDIR, "--num_processes=2", "--coordinator_address=localhost"],
            "--coordinator_address=localhost has no port; write HOST:PORT",
        ),
        ([WORKDIR, "--mode=translate"], "there is no run in runs/x"),
        ([WORKDIR], "there is no run in runs/x"),
    ],
)
def test_a_wrong_flag_is_one_sentence(refusal, argv, said):
    assert said in refusal(*argv)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("--config.model.d_modle=3", "model.d_modle; did you mean model.d_model?"),
        ("--config.modle.d_model=3", "modle; did you mean model?"),
        ("--config.model.zzz=3", "there are activation, attention_bias"),
        ("--config.model.d_model.x=3", "config.model.d_model is a value"),
        ("--config.model.d_model=big", "'big'"),
        ("--config.model.d_model=1.5", "'1.5'"),
        ("--config.model.norm_first=perhaps", "perhaps"),
        ("--config.training.ema_decay=most", "'most'"),
        ("--config.model=3", "config.model=3"),
        ("--config.model.d_model", "config.model.d_model"),
        ("--config.=3", "no key"),
    ],
)
def test_a_wrong_override_is_one_sentence(refusal, override, said):
    assert said in refusal(CONFIG, WORKDIR, override)


def test_an_override_needs_a_config_before_it(refusal):
    override = "--config.model.d_model=3"
    assert "--config=FILE" in refusal(WORKDIR, override)
    assert "before" in refusal(WORKDIR, override, CONFIG)


@pytest.mark.parametrize(
    ("text", "row", "said"),
    [
        ("def get_config(:\n", "", "SyntaxError"),
        ("import not_there\n", "", "not_there"),
        ("def get_config():\n    return {}['a']\n", "", "KeyError: 'a'"),
        ("def get_config():\n    raise ValueError('my\\nreason')\n", "", "reason"),
        ("def get_config():\n    return {}\n", "", "to_dict"),
        ("def get_config():\n    return open('gone')\n", "", "'gone'"),
        ("def get_config(row):\n    return row\n", "", "'row'"),
        ("def get_config():\n    return 1\n", ":big", "argument"),
    ],
)
def test_a_config_file_that_fails_is_one_sentence(
    refusal, tmp_path_factory, text, row, said
):
    file = tmp_path_factory.mktemp("configs") / "mine.py"
    file.write_text(text)
    message = refusal(f"--config={file}{row}", WORKDIR)
    assert f"the config file {file} fails" in message
    assert said in message


def test_what_a_config_says_to_its_user_is_said_as_it_is(refusal, tmp_path_factory):
    file = tmp_path_factory.mktemp("configs") / "mine.py"
    file.write_text(
        "from jaxformer.errors import InputError\n\n\n"
        "def get_config(row):\n"
        "    raise InputError(f'there is no row {row}')\n"
    )
    assert refusal(f"--config={file}:Z", WORKDIR) == "jaxformer: there is no row Z\n"


@pytest.mark.parametrize("name", ["gone.py", "gone", "", "gone.py:row"])
def test_a_config_file_that_is_missing_is_named(refusal, name):
    message = refusal(f"--config={name}", WORKDIR)
    assert f"there is no config file {name.partition(':')[0]!r}" in message


# What a mode ends with ------------------------------------------------------------


def test_a_result_is_one_line_of_json(capsys, mode_that):
    mode_that(lambda options: {"bleu": 33.5, "direction": "en-de"})
    assert main(["jaxformer", WORKDIR]) == 0
    out, err = capsys.readouterr()
    assert out == '{"bleu": 33.5, "direction": "en-de"}\n'
    assert err == ""


def test_numbers_that_json_does_not_know_are_null(capsys, mode_that):
    mode_that(lambda options: {"nll": float("nan"), "ppl": float("inf"), "step": 3})
    assert main(["jaxformer", WORKDIR]) == 0
    out = capsys.readouterr().out
    assert json.loads(out, parse_constant=pytest.fail) == {
        "nll": None, "ppl": None, "step": 3,
    }  # fmt: skip


def test_a_mode_without_a_result_prints_nothing(capsys, mode_that):
    mode_that(lambda options: None)
    assert main(["jaxformer", WORKDIR]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("the file x is empty"), 2, "jaxformer: the file x is empty\n"),
        (KeyboardInterrupt(), 130, "jaxformer: interrupted\n"),
    ],
)
def test_an_end_that_is_no_mistake_of_the_program(capsys, mode_that, error, code, said):
    def fail(options):
        raise error

    mode_that(fail)
    assert main(["jaxformer", WORKDIR]) == code
    assert capsys.readouterr() == ("", said)


def test_a_mistake_of_the_program_is_not_hidden(mode_that):
    mode_that(lambda options: {}["missing"])
    with pytest.raises(KeyError):
        main(["jaxformer", WORKDIR])


def test_a_reader_that_has_enough_ends_the_program_quietly(mode_that, monkeypatch):
    mode_that(lambda options: {"bleu": 1.0})
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["jaxformer", WORKDIR]) == 1


def test_rooms_report_on_stderr_and_libraries_only_warn(capsys, mode_that):
    def report(options):
        logging.getLogger("jaxformer.data").info("reading")
        logging.getLogger("library").info("chatter")
        logging.getLogger("library").warning("old")
        return {"done": True}

    mode_that(report)
    assert main(["jaxformer", WORKDIR]) == 0
    assert capsys.readouterr() == ('{"done": true}\n', "reading\nold\n")


def test_the_module_runs_as_a_program(tmp_path):
    program = subprocess.run(
        [sys.executable, "-m", "jaxformer.main", "--mode=translate", "--workdir=gone"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (program.returncode, program.stdout) == (2, "")
    assert program.stderr.startswith("jaxformer: there is no run in gone")
    assert program.stderr.count("\n") == 1
