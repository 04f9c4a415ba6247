"""jaxformer check --topology: refusals, and what it takes from a config or a run."""

import importlib.util
import json
from dataclasses import replace
from unittest import mock

import jax
import pytest

from jaxformer.commands import check_topology
from jaxformer.models.architectures import make_model
from jaxformer.models.sequence_model import parameter_count
from jaxformer.runs.config_files import parse_config, read_config_file
from tests.accelerators.answers import answer, program


@pytest.fixture
def compiled(monkeypatch):
    """Stand in for the compilers; returns the works that they are given."""
    given = []

    def compile_programs(topology, work, *, decode):
        given.append(work)
        found = answer(update=program())
        if decode:
            found = found._replace(decoder=program(), sentences=4)
        return found

    monkeypatch.setattr(check_topology, "compile_programs", compile_programs)
    monkeypatch.setattr(check_topology, "compiler_of", lambda _: "TPU compiler 1.2")
    return given


@pytest.mark.parametrize(
    ("topology", "extra"), [("v5e:2x2", "tpu"), ("h200:8", "cuda")]
)
def test_a_missing_compiler_is_named_with_what_to_install(
    command, toy, topology, extra
):
    with mock.patch.object(importlib.util, "find_spec", return_value=None):
        answered = command("check", toy.flags[0], f"--topology={topology}")
    assert answered.complaint == (
        f"the compiler for {topology} is not installed; run: "
        f"pip install 'jaxformer[{extra}]', or -e '.[{extra}]' in a checkout"
    )


def test_a_config_alone_is_checked_with_its_longest_rows(command, toy, compiled):
    """No text is read, and no device of this process is asked for."""
    with mock.patch.object(jax, "devices", side_effect=AssertionError):
        found = command("check", toy.flags[0], "--topology=v5e:2x2")
    (work,) = compiled
    assert (work.shape, work.microbatches, work.vocab_size) == ((96, 32, 32), 1, 96)
    assert work.tokens == 96 * 32
    assert found.result["compiler"] == "TPU compiler 1.2"
    assert found.result["decoder"]["sentences"] == 4
    assert "no text is read: a vocabulary of 96 pieces" in found.err
    assert "estimated by the TPU compiler 1.2, nothing was run" in found.err


def test_of_buckets_the_largest_is_checked(command, toy, compiled):
    flag = "--config.batches.layout=buckets"
    found = command("check", toy.flags[0], flag, "--topology=v5e:2x2")
    assert compiled[0].shape == (96, 32, 32)
    assert "96 x 32 x 32, the largest bucket" in found.err


def test_a_run_is_checked_with_its_own_batches(use, compiled, trained):
    recorded = json.loads((trained.workdir / "config.json").read_text())
    use("check", "--topology=v5e:2x2").result  # noqa: B018
    (work,) = compiled
    assert work.vocab_size == recorded["tokenizer"]["vocab_size"]
    rows, source, target = work.shape
    assert (source, target) == (32, 32)
    assert 0.5 < work.tokens / (rows * target) < 1  # padding does not count


def test_times_of_gpus_are_ranked_as_lower_bounds(command, toy, compiled):
    found = command("check", toy.flags[0], "--topology=h100:2,auto")
    assert "ranked      1. at least " in found.err
    assert found.err.count(" GiB, at least ") == len(compiled)


def test_arrangements_are_ranked_with_their_flags(command, toy, compiled):
    found = command("check", toy.flags[0], "--topology=v5e:2x2,auto")
    assert len(found.result["ranked"]) == len(compiled) > 1
    assert {work.config.mesh.data for work in compiled} >= {4, 2}
    assert "ranked      1. 3.25 ms: data=4" in found.err
    assert "--config.mesh.data=4 --config.mesh.fsdp=1" in found.err


def test_an_arrangement_has_room_for_the_state_of_its_rule():
    """Parameters, gradients and two moments of Adam; of frozen parameters only one."""
    config = parse_config(read_config_file("wmt_base"))
    model = make_model(config.model, vocab_size=12, rematerialise=False)
    count = parameter_count(jax.eval_shape(model.init, jax.random.key(0)))

    def of(**changes):
        changed = {
            name: replace(getattr(config, name), **values)
            for name, values in changes.items()
        }
        return check_topology.state_bytes(model, replace(config, **changed)) / count

    frozen = {"freeze": ("encoder", "decoder")}
    assert of() == pytest.approx(16, rel=1e-3)
    assert of(training={"ema_decay": 0.9}) == pytest.approx(20, rel=1e-3)
    assert 4 < of(training=frozen) < 6
    assert 8 < of(optimizer={"algorithm": "adafactor"}) < 10


def test_the_page_shows_an_estimate_and_an_earlier_one(
    command, toy, compiled, tmp_path
):
    before, page = tmp_path / "before.json", tmp_path / "page.html"
    flags = [toy.flags[0], "--topology=v5e:2x2"]
    before.write_bytes(command("check", *flags).out)
    flags[-1] = "--topology=h100"
    command("check", *flags, f"--before={before}", f"--output={page}").result  # noqa: B018
    text = page.read_text()
    assert '<th scope="col">before</th><th scope="col">after</th>' in text
    assert '"name": "after"' in text
    assert "A lower bound" in text
    assert "<td>estimate</td><td>lower bound</td>" in text
    assert "<td>2.000</td>" not in text  # both passes of a part are one row
    assert '<th scope="row" class="mono">loss</th><td>3.000</td><td>3.000</td>' in text
