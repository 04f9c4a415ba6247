"""Figures from a compiler's answers: small ones, computed by hand."""

import math
from dataclasses import replace

import pytest

from jaxformer.accelerators import describe
from jaxformer.accelerators.arrangements import meshes, search
from jaxformer.accelerators.chips import parse_topology
from jaxformer.accelerators.estimate import Work, estimate, estimate_decoder
from jaxformer.accelerators.hlo import Cost
from jaxformer.runs.config_files import parse_config, read_config_file
from tests.accelerators.answers import answer, program, too_large

CONFIG = parse_config(read_config_file("wmt_base"))  # 100,000 updates
ANY_ROWS = replace(CONFIG, batches=replace(CONFIG.batches, row_multiple=1))
V5E = parse_topology("v5e:2x2")  # 1.5 GHz, 197 TFLOP/s, 200 GB/s a chip, 16 GB


def work(microbatches=1, flops=197 * 10**10):
    tokens = microbatches * 8 * 16
    return Work(CONFIG, 100, 100, (8, 16, 16), microbatches, flops, tokens)


def test_one_program_is_an_update():
    figures = estimate(V5E, work(), answer(update=program()))
    assert figures["bytes_per_device"] == 123
    assert figures["bytes_available"] == 16_000_000_000
    assert figures["fits"] is True
    assert figures["empty_rows"] == 0
    assert figures["estimated_seconds_per_update"] == pytest.approx(0.003)
    assert figures["seconds_at_peak"] == pytest.approx(0.0025)  # on four chips
    assert figures["share_of_peak"] == pytest.approx(0.0025 / 0.003)
    assert figures["collective_bytes"] == 50_000_000
    assert figures["collective_seconds"] == pytest.approx(0.00025)
    assert figures["seconds_with_collectives"] == pytest.approx(0.00325)
    assert figures["target_tokens_per_second"] == round(128 / 0.00325)
    assert figures["hours"] == pytest.approx(0.00325 * 100_000 / 3600)
    assert figures["parts"] == [
        {"part": "loss", "pass": "forward", "seconds": pytest.approx(0.002)},
        {"part": "loss", "pass": "backward", "seconds": pytest.approx(0.001)},
    ]


def test_microbatches_count_each_time_and_the_optimiser_once():
    adam = {("optimizer", "", ""): Cost(0.001)}
    step = program(arguments=500, parts=adam, collectives={})
    found = answer(microbatch=program(), optimizer=step)
    figures = estimate(V5E, work(microbatches=3), found)
    assert figures["bytes_per_device"] == 523  # of the larger program
    assert figures["estimated_seconds_per_update"] == pytest.approx(3 * 0.003 + 0.001)
    assert figures["collectives"] == [
        {
            "kind": "all-reduce",
            "dtype": "f32",
            "count": 6,
            "bytes": 150_000_000,
            "largest": 10,
        }
    ]
    assert figures["share_of_peak"] == pytest.approx(3 * 0.0025 / 0.010)


def test_a_program_that_does_not_fit_says_what_it_needs():
    figures = estimate(V5E, work(), answer(update=too_large(20 * 10**9)))
    assert (figures["fits"], figures["bytes_per_device"]) == (False, 20 * 10**9)
    assert "estimated_seconds_per_update" not in figures
    assert "does NOT fit: 18.63 GiB of 14.90 GiB" in describe.update(figures, "X")


def test_jax_reserves_three_quarters_of_a_gpu(monkeypatch):
    """As long as the environment says nothing else."""
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    h100 = parse_topology("h100")
    figures = estimate(h100, work(), answer(update=program()))
    assert figures["bytes_available"] == 60_000_000_000
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9")
    figures = estimate(h100, work(), answer(update=program()))
    assert figures["bytes_available"] == 72_000_000_000


def test_kernels_of_pallas_are_named_because_they_have_no_estimate():
    kernels = {"fusion": 3, "tpu_custom_call": 12}
    figures = estimate(V5E, work(), answer(update=program(kernels=kernels)))
    assert figures["kernels_without_estimate"] == 12
    assert "without 12 Pallas kernels" in describe.update(figures, "X")


def test_a_core_of_a_v4_has_half_of_the_chip():
    figures = estimate(parse_topology("v4:2x2x1"), work(), answer(update=program()))
    assert figures["devices"] == 8
    assert figures["bytes_available"] == 16_000_000_000
    assert figures["seconds_at_peak"] == pytest.approx(1.97e12 / (4 * 275e12))
    assert figures["collective_seconds"] == pytest.approx(5e7 / 150e9)


def test_gpus_have_a_lower_bound_by_section_and_by_kind_of_kernel():
    parts = {
        ("loss", "forward", "products"): Cost(0.002, 4 * 10**9, 3),
        ("loss", "forward", "others"): Cost(0.001, 3 * 10**9, 2),
        ("norm", "backward", "others"): Cost(0.001, 2 * 10**9, 2),
    }
    kernels = {"fusion": 4, "__gpu$xla.gpu.triton": 1, "__triton_gemm": 2}
    found = answer(update=program(parts=parts, kernels=kernels))
    figures = estimate(parse_topology("h200:4"), work(), found)
    assert figures["kinds"] == {
        "all": {"seconds": 0.004, "bytes": 9 * 10**9, "kernels": 7},
        "products": {"seconds": 0.002, "bytes": 4 * 10**9, "kernels": 3},
        "others": {"seconds": 0.002, "bytes": 5 * 10**9, "kernels": 4},
    }
    text = describe.update(figures, "GPU compiler 1.2")
    for said in (
        "h200:4: 4 devices, compiled by the GPU compiler 1.2, nothing was run",
        "at least 4 ms on the chip; products alone take 0.498 ms at peak: at most 12",
        "at most 31,135 target tokens a second, at least 0.1 hours",
        "                4 move   5.00 GB, at least     2 ms: others",
        " 75.0%     3 ms    7.00 GB  loss (3 ms + 0 ms)",
        "without the operations of 1 Pallas kernel",
    ):
        assert said in text
    step = estimate_decoder(parse_topology("h200"), 4, program(parts=parts))
    assert "at least 4 ms; reading its arguments" in describe.decoder(step, 4)


def test_a_step_of_the_decoder_is_compared_with_reading_its_memory():
    figures = estimate_decoder(V5E, 64, program(arguments=819_000))
    assert figures["seconds_to_read_memory"] == pytest.approx(1e-6)
    assert figures["estimated_seconds_per_step"] == pytest.approx(0.003)
    assert "64 sentences, beam 4" in describe.decoder(figures, 4)


def test_the_text_names_compiler_share_and_largest_parts():
    figures = estimate(V5E, work(), answer(update=program()))
    text = describe.update(figures, "TPU compiler 1.2")
    for said in (
        "v5e:2x2: 4 devices, estimated by the TPU compiler 1.2, nothing was run",
        "data=4, 1 microbatch of 8 x 16 x 16",
        "3 ms on the chip; products alone take 2.5 ms at peak: 83.3%",
        "50.0 MB in     2 x all-reduce of f32",
        "100.0%     3 ms  loss (2 ms + 1 ms)",
    ):
        assert said in text


# The search of an arrangement --------------------------------------------------------


def test_meshes_divide_devices_and_model():
    """Eight heads, 2,048 hidden units, d_model 512, and a vocabulary of 12."""
    found = [tuple(vars(mesh).values()) for mesh in meshes(16, CONFIG, 12)]
    assert found == [
        (16, 1, 1), (8, 2, 1), (4, 4, 1), (2, 8, 1), (1, 16, 1),
        (8, 1, 2), (4, 2, 2), (2, 4, 2), (1, 8, 2),
        (4, 1, 4), (2, 2, 4), (1, 4, 4),
    ]  # fmt: skip


def test_meshes_divide_the_half_of_d_model_that_a_model_has():
    """Each direction of RNNsearch's encoder has 500 of 1,000; 8 does not divide it."""
    config = parse_config(read_config_file("rnnsearch"))
    assert {mesh.fsdp for mesh in meshes(8, config, 7)} == {1, 2, 4}
    forwards = replace(config, model=replace(config.model, bidirectional=False))
    for has_none in (CONFIG, forwards):
        assert {mesh.fsdp for mesh in meshes(8, has_none, 7)} == {1, 2, 4, 8}


def searched(seconds, bytes_of):
    """Search with made-up figures; returns the arrangements found, and those tried."""
    tried = []

    def compile_one(given):
        mesh, training = given.config.mesh, given.config.training
        name = (*vars(mesh).values(), given.microbatches, training.rematerialise)
        tried.append(name)
        size = bytes_of(given.shape[0] / mesh.data / mesh.fsdp, training.rematerialise)
        return {
            "mesh": vars(mesh), "shape": given.shape, "name": name, "empty_rows": 0,
            "microbatches": given.microbatches, "bytes_available": 100,
            "rematerialise": training.rematerialise, "bytes_per_device": size,
            "is_lower_bound": False,
            "fits": size <= 100, "seconds_with_collectives": seconds(*name),
        }  # fmt: skip

    update = work()._replace(config=ANY_ROWS, shape=(32, 16, 16), vocab_size=12)
    found = search(V5E, update, state_bytes=16, compile_one=compile_one)
    assert [f["seconds_with_collectives"] for f in found] == sorted(
        f["seconds_with_collectives"] for f in found
    )
    return [f["name"] for f in found], tried


def test_more_fsdp_and_tensor_are_tried_while_the_estimate_improves():
    found, tried = searched(
        lambda data, fsdp, tensor, *_: abs(fsdp - 2) + 2 * tensor, lambda *_: 50
    )
    assert [name[:3] for name in tried] == [
        (4, 1, 1), (2, 2, 1), (1, 4, 1),  # worse than before
        (2, 1, 2), (1, 2, 2),  # the best of tensor=2 is worse: tensor=4 is left out
    ]  # fmt: skip
    assert found[0] == (2, 2, 1, 1, False)


def test_an_update_that_does_not_fit_is_cut_and_also_rematerialised():
    """Eight rows a device, of 30 bytes each, or 12 if they are rematerialised."""
    found, tried = searched(
        lambda *name: 10 + name[3], lambda rows, again: rows * (12 if again else 30)
    )
    tried, found = (
        [name[3:] for name in names if name[:3] == (4, 1, 1)]
        for names in (tried, found)
    )
    assert tried == [(1, False), (3, False), (1, True)]
    assert found == [(1, True), (3, False)]


@pytest.mark.parametrize(
    ("config", "rows", "heights"), [(ANY_ROWS, 5, {5}), (CONFIG, 40, {40, 24})]
)
def test_rows_are_those_of_training(config, rows, heights):
    """The compiler adds empty rows; training would fill them with text."""
    found = set()

    def compile_one(given):
        found.add(given.shape[0])
        return {
            "mesh": vars(given.config.mesh), "shape": given.shape, "empty_rows": 0,
            "microbatches": given.microbatches, "rematerialise": False,
            "bytes_per_device": given.shape[0], "bytes_available": 39,
            "is_lower_bound": False,
            "fits": given.shape[0] < 40, "seconds_with_collectives": 1.0,
        }  # fmt: skip

    update = work()._replace(config=config, shape=(rows, 16, 16))
    search(V5E, update, 4, compile_one)
    assert found == heights


def test_nothing_is_found_where_not_even_a_row_fits():
    found, tried = searched(lambda *_: math.inf, lambda *_: 1000)
    assert found == []
    assert len({name[:3] for name in tried}) == 6  # every mesh


def test_rows_that_fill_up_devices_are_named():
    few = work()._replace(shape=(5, 16, 16))
    figures = estimate(V5E, few, answer(update=program()))
    assert "of 8 x 16 x 16, 3 rows empty" in describe.arrangement(figures)


def test_flags_choose_an_arrangement():
    figures = {
        "mesh": {"data": 2, "fsdp": 2, "tensor": 1}, "shape": [8, 16, 16],
        "empty_rows": 1, "microbatches": 2, "rematerialise": True,
    }  # fmt: skip
    assert describe.flags(figures, 16) == (
        "--config.mesh.data=2 --config.mesh.fsdp=2 --config.mesh.tensor=1 "
        "--config.training.tokens_per_microbatch=112 "
        "--config.training.rematerialise=True"
    )
