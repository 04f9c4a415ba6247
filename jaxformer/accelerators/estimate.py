"""Estimates of a run on a topology, from what its compiler says of the programs."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from typing import Any, NamedTuple

from jaxformer.accelerators.chips import Topology
from jaxformer.config.sections import Config
from jaxformer.system.errors import InputError

logger = logging.getLogger(__name__)

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
        f"the compiler for {topology.name} is not installed; run: "
        f"pip install 'jaxformer[{extra}]'"
    )


def compile_programs(topology: Topology, work: Work, *, decode: bool) -> dict[str, Any]:
    """Compile the programs of a run in another process, and return its answer.

    Raises InputError for what the topology cannot run.
    """
    request = {
        "topology": topology.name,
        "config": work.config.as_dict(),
        "vocab_size": work.vocab_size,
        "source_vocab_size": work.source_vocab_size,
        "shape": work.shape,
        "microbatches": work.microbatches,
        "decode": decode,
    }
    environment = {**os.environ, **ENVIRONMENT}
    if topology.chip.is_tpu:
        environment.pop("XLA_FLAGS", None)  # those of the CPU and of GPUs
    done = subprocess.run(
        [sys.executable, "-m", "jaxformer.accelerators.compiler"],
        input=json.dumps(request), capture_output=True, text=True, env=environment,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the compiler for {topology.name} failed:\n{done.stderr}")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise InputError(answer["refused"])
    return answer


def memory_of(programs: dict[str, dict]) -> dict[str, int | None]:
    """Bytes on each device of the program that takes most, in all and by kind."""
    kinds = ("arguments", "temporary", "outputs")

    def total(program: dict) -> int:
        return program.get("needed") or sum(program[kind] for kind in kinds)

    most = max(programs.values(), key=total)
    return {"all": total(most), **{kind: most.get(kind) for kind in kinds}}


def estimate(topology: Topology, work: Work, answer: dict[str, Any]) -> dict[str, Any]:
    """Derive the figures of an update from an answer of `compile_programs`."""
    chip, programs = topology.chip, answer["programs"]
    memory = memory_of(programs)
    available = int(chip.memory / chip.cores)
    if not chip.is_tpu:  # JAX reserves a share of a GPU's memory
        share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")
        available = int(float(share) * available)
    figures = {
        "topology": topology.name,
        "devices": topology.devices,
        "mesh": answer["mesh"],
        "shape": answer["shape"],
        "empty_rows": answer["shape"][0] - work.shape[0],  # that fill up the devices
        "microbatches": work.microbatches,
        "rematerialise": work.config.training.rematerialise,
        "bytes_per_device": memory.pop("all"),
        "memory": memory,
        "bytes_available": available,
    }
    if any("needed" in program for program in programs.values()):
        return figures | {"fits": False}
    # The TPU compiler refuses what does not fit.
    figures["fits"] = chip.is_tpu or figures["bytes_per_device"] <= available
    parts, collectives, kernels = Counter(), {}, Counter()
    for name, program in programs.items():
        times = work.microbatches if name == "microbatch" else 1
        for part, direction, cycles in program["parts"]:
            parts[part, direction] += times * cycles
        for kind, dtype, count, size, most in program["collectives"]:
            key = kind, dtype
            before = collectives.get(key, {"count": 0, "bytes": 0, "largest": 0})
            collectives[key] = {
                "count": before["count"] + times * count,
                "bytes": before["bytes"] + times * size,
                "largest": max(before["largest"], most),
            }
        for name, count in program["kernels"].items():
            kernels[name] += times * count
    sent = sum(each["bytes"] for each in collectives.values())
    figures |= {
        "collective_bytes": sent,
        "collective_seconds": sent / (chip.link_rate / chip.cores),
        "collectives": [
            {"kind": kind, "dtype": dtype, **each}  # largest: numbers of an array
            for (kind, dtype), each in collectives.items()
        ],
        "compile_seconds": sum(each["compile_seconds"] for each in programs.values()),
        "has_float64": any(each["has_float64"] for each in programs.values()),
    }  # fmt: skip
    at_peak = work.microbatches * work.flops / (chip.peak * topology.chips)
    figures["seconds_at_peak"] = at_peak
    if chip.clock is None:
        return figures | {"kernels": dict(kernels)}
    figures["kernels_without_estimate"] = kernels["tpu_custom_call"]  # of Pallas
    return figures | times_of(figures, parts, chip.clock, work)


def times_of(
    figures: dict[str, Any], parts: Counter, clock: float, work: Work
) -> dict[str, Any]:
    """Turn the cycles of parts into seconds of an update and of the run."""
    seconds = parts.total() / clock
    with_links = seconds + figures["collective_seconds"]
    return {
        "estimated_seconds_per_update": seconds,
        "share_of_peak": figures["seconds_at_peak"] / seconds,
        "seconds_with_collectives": with_links,
        "target_tokens_per_second": round(work.tokens / with_links),
        "hours": work.config.training.steps * with_links / 3600,
        "parts": [
            {"part": part, "pass": direction, "seconds": cycles / clock}
            for (part, direction), cycles in parts.most_common()
        ],
    }


def estimate_decoder(topology: Topology, program: dict[str, Any]) -> dict[str, Any]:
    """Derive the figures of one step of the search, on one device."""
    chip = topology.chip
    figures = {"sentences": program["sentences"]}
    if "needed" in program:
        return figures | {"bytes_per_device": program["needed"], "fits": False}
    figures |= {
        "bytes_per_device": memory_of({"decoder": program})["all"],
        "seconds_to_read_memory": program["arguments"] / chip.memory_rate * chip.cores,
        "has_float64": program["has_float64"],
        "compile_seconds": program["compile_seconds"],
    }
    if chip.clock is None:
        return figures | {"kernels": program["kernels"]}
    cycles = sum(cycles for *_, cycles in program["parts"])
    return figures | {"estimated_seconds_per_step": cycles / chip.clock}
