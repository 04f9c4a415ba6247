"""Estimates of a run on a topology, from what its compiler says of the programs."""

import importlib.metadata
import importlib.util
import os
import pickle
import subprocess
import sys
from collections import Counter
from typing import Any, NamedTuple

from jaxformer.accelerators.chips import Topology
from jaxformer.accelerators.hlo import Cost, Part, summed
from jaxformer.config.sections import Config
from jaxformer.system.errors import InputError, install
from jaxformer.training.memory import StepMemory

Figures = dict[str, Any]  # of an estimate, as jaxformer check prints them in JSON
UNKNOWN = StepMemory(None, None, None)
PALLAS = "tpu_custom_call", "__gpu$xla.gpu.triton", "mosaic_gpu_v2"  # its kernels

# By platform: the modules of its compiler, of which one is enough, and the extra.
COMPILERS = {
    "tpu": (("libtpu",), "tpu"),
    "cuda": (("jax_cuda13_plugin", "jax_cuda12_plugin"), "cuda"),
}
# The compilers' process uses no device, asks no service, and keeps no programs; several
# processes may load libtpu at a time.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


class Work(NamedTuple):
    """What a run computes, whatever it runs on."""

    config: Config
    vocab_size: int
    source_vocab_size: int
    shape: tuple[int, int, int]  # of a microbatch: rows, source and target length
    microbatches: int  # of an update
    flops: int  # of the matrix products of a microbatch
    tokens: float  # target tokens of an update


class Exchange(NamedTuple):
    """What a device sends by the collectives of one kind and dtype."""

    count: int = 0
    bytes: int = 0
    largest: int = 0  # numbers of an array

    def plus(self, count: int, size: int, largest: int) -> "Exchange":
        """Add other collectives."""
        most = max(self.largest, largest)
        return Exchange(self.count + count, self.bytes + size, most)


class ProgramFacts(NamedTuple):
    """What the text of a program and its compiler say of it."""

    needed: int  # bytes on each device: all that is known if it does not fit
    memory: StepMemory  # UNKNOWN if it does not fit
    parts: dict[Part, Cost]
    collectives: dict[tuple[str, str], Exchange]  # by kind and dtype
    kernels: Counter[str]
    has_float64: bool


class Compiled(NamedTuple):
    """The programs of a run on a topology."""

    mesh: dict[str, int]
    shape: tuple[int, int, int]  # of a microbatch, with rows that fill up the devices
    programs: dict[str, ProgramFacts]  # "update", or "microbatch" and "optimizer"
    decoder: ProgramFacts | None = None  # a step of the search
    sentences: int = 0  # in this step


def compiler_of(topology: Topology) -> str:
    """Name the compiler of a topology with its version.

    Raises InputError if it is not installed.
    """
    modules, extra = COMPILERS[topology.platform]
    for module in modules:
        if importlib.util.find_spec(module) is not None:
            version = importlib.metadata.version(module.replace("_", "-"))
            return f"{'TPU' if extra == 'tpu' else 'GPU'} compiler {version}"
    raise InputError(
        f"the compiler for {topology.name} is not installed; run: {install(extra)}"
    )


def compile_programs(topology: Topology, work: Work, *, decode: bool) -> Compiled:
    """Compile the programs of a run in another process.

    Raises InputError for what the topology cannot run.
    """
    environment = {**os.environ, **ENVIRONMENT}
    if topology.chip.is_tpu:
        environment.pop("XLA_FLAGS", None)  # those of the CPU and of GPUs
    done = subprocess.run(
        [sys.executable, "-m", "jaxformer.accelerators.compiler"],
        input=pickle.dumps((topology, work, decode)),
        capture_output=True,
        env=environment,
    )
    if done.returncode:
        message = done.stderr.decode(errors="replace")
        if "cuDNN not found" in message:
            raise InputError(
                "model.fused_attention needs cuDNN, which is not installed; run: "
                "pip install nvidia-cudnn-cu13, or set model.fused_attention=False"
            )
        raise RuntimeError(f"the compiler for {topology.name} failed:\n{message}")
    found = pickle.loads(done.stdout)
    if isinstance(found, InputError):
        raise found
    return found


def estimate(topology: Topology, work: Work, compiled: Compiled) -> Figures:
    """Derive the figures of an update from what `compile_programs` returns."""
    chip, programs = topology.chip, compiled.programs
    largest = max(programs.values(), key=lambda program: program.needed)
    available = int(chip.memory / chip.cores)
    if not chip.is_tpu:  # JAX reserves a share of a GPU's memory
        share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")
        available = int(float(share) * available)
    figures = {
        "topology": topology.name,
        "devices": topology.devices,
        "mesh": compiled.mesh,
        "shape": compiled.shape,
        "empty_rows": compiled.shape[0] - work.shape[0],  # that fill up the devices
        "microbatches": work.microbatches,
        "rematerialise": work.config.training.rematerialise,
        "bytes_per_device": largest.needed,
        "memory": largest.memory._asdict(),
        "bytes_available": available,
        "is_lower_bound": not chip.is_tpu,  # the estimated time
    }
    if any(program.memory.arguments is None for program in programs.values()):
        return figures | {"fits": False}
    # The TPU compiler refuses what does not fit.
    figures["fits"] = chip.is_tpu or largest.needed <= available
    costs, exchanged, kernels = [], {}, Counter()
    for name, program in programs.items():
        times = work.microbatches if name == "microbatch" else 1
        costs += [(part, cost, times) for part, cost in program.parts.items()]
        for key, (count, size, most) in program.collectives.items():
            before = exchanged.get(key, Exchange())
            exchanged[key] = before.plus(times * count, times * size, most)
        for kernel, count in program.kernels.items():
            kernels[kernel] += times * count
    sent = sum(each.bytes for each in exchanged.values())
    figures |= {
        "collective_bytes": sent,
        "collective_seconds": sent / (chip.link_rate / chip.cores),
        "collectives": [
            {"kind": kind, "dtype": dtype, **each._asdict()}
            for (kind, dtype), each in exchanged.items()
        ],
        "has_float64": any(each.has_float64 for each in programs.values()),
    }
    at_peak = work.microbatches * work.flops / (chip.peak * topology.chips)
    figures["seconds_at_peak"] = at_peak
    figures["kernels_without_estimate"] = sum(kernels[name] for name in PALLAS)
    figures |= times_of(figures, costs, work)
    if chip.is_tpu:
        return figures
    kinds = summed((key, *cost) for (*_, kind), *cost in costs for key in ("all", kind))
    kinds = {kind: cost._asdict() for kind, cost in kinds.items()}
    return figures | {"kernels": dict(kernels), "kinds": kinds}


def times_of(
    figures: Figures, costs: list[tuple[Part, Cost, int]], work: Work
) -> Figures:
    """Sum the costs of parts to the seconds of an update and of the run."""
    parts = summed((part[:2], *cost) for part, *cost in costs)
    seconds = sum(cost.seconds for cost in parts.values())
    with_links = seconds + figures["collective_seconds"]
    return {
        "estimated_seconds_per_update": seconds,
        "share_of_peak": figures["seconds_at_peak"] / seconds,
        "seconds_with_collectives": with_links,
        "target_tokens_per_second": round(work.tokens / with_links),
        "hours": work.config.training.steps * with_links / 3600,
        "parts": [
            {"part": part, "pass": direction, "seconds": cost.seconds}
            | ({"bytes": cost.bytes} if cost.kernels else {})
            for (part, direction), cost in parts.items()
        ],
    }


def estimate_decoder(
    topology: Topology, sentences: int, program: ProgramFacts
) -> Figures:
    """Derive the figures of one step of the search, on one device."""
    chip, read = topology.chip, program.memory.arguments
    figures = {"sentences": sentences, "bytes_per_device": program.needed}
    if read is None:
        return figures | {"fits": False}
    return figures | {
        "seconds_to_read_memory": read / chip.memory_rate * chip.cores,
        "estimated_seconds_per_step": sum(c.seconds for c in program.parts.values()),
        "is_lower_bound": not chip.is_tpu,
        "has_float64": program.has_float64,
    }
