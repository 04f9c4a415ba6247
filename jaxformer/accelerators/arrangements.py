"""Search the mesh, the microbatch and the rematerialisation of a run on a topology."""

import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import replace

from jaxformer.accelerators import describe
from jaxformer.accelerators.chips import Topology
from jaxformer.accelerators.estimate import Figures, Work
from jaxformer.config.sections import Config, MeshConfig
from jaxformer.training.sharding import LOGICAL_AXES, PARTS

logger = logging.getLogger(__name__)

TRIES = 4  # compiles of one mesh for a microbatch that fits


def meshes(devices: int, config: Config, *vocab_sizes: int) -> list[MeshConfig]:
    """List the meshes of `devices` that divide the model, least `tensor` first."""
    found = []
    sizes = [n for n in range(1, devices + 1) if devices % n == 0]
    for tensor in sizes:
        for fsdp in (n for n in sizes if devices % (tensor * n) == 0):
            mesh = MeshConfig(data=devices // tensor // fsdp, fsdp=fsdp, tensor=tensor)
            if all(_divides(mesh, config, size) for size in vocab_sizes):
                found.append(mesh)
    return found


def _divides(mesh: MeshConfig, config: Config, vocab_size: int) -> bool:
    for logical, (axis, name) in LOGICAL_AXES.items():
        if logical in PARTS and not config.model.halves:
            continue
        section, _, key = (name or "").partition(".")
        size = getattr(getattr(config, section, None), key, None)
        size = vocab_size if key == "vocab_size" else size
        size = size and size // PARTS.get(logical, 1)
        if isinstance(size, int) and size % getattr(mesh, axis):
            return False
    return True


def search(
    topology: Topology,
    work: Work,
    state_bytes: int,
    compile_one: Callable[[Work], Figures],
) -> list[Figures]:
    """Return the figures of the arrangements that fit, fastest first.

    A mesh with more `fsdp`, and then one with more `tensor`, is tried as long as the
    estimate improves. `work` has an update as one microbatch; `state_bytes` are
    those of parameters, gradients and the optimiser's state, before they are split;
    `compile_one` takes a Work and returns the figures of an update.
    """
    listed = meshes(topology.devices, work.config, *work[1:3])
    logger.info("search      %d meshes divide the devices and the model", len(listed))
    found: list[Figures] = []
    best, left = math.inf, len(listed)
    for _, alike in itertools.groupby(listed, key=lambda mesh: mesh.tensor):
        best_here = math.inf  # of this `tensor`
        for mesh in alike:
            left -= 1
            logger.info("            at most %d more meshes after this one ...", left)
            fitting = _of_mesh(topology, work, mesh, state_bytes, compile_one)
            found += fitting
            seconds = min(map(_seconds, fitting), default=math.inf)
            if seconds > best_here:
                break
            best_here = seconds
        left = len([each for each in listed if each.tensor > mesh.tensor])
        if best_here > best:
            break
        best = min(best, best_here)
    return sorted(found, key=_seconds)


def _seconds(figures: Figures) -> float:
    return figures["seconds_with_collectives"]


def _of_mesh(
    topology: Topology,
    work: Work,
    mesh: MeshConfig,
    state_bytes: int,
    compile_one: Callable[[Work], Figures],
) -> list[Figures]:
    """Find the largest microbatches of a mesh that fit, plain and rematerialised.

    If a whole update fits, recomputing saves nothing that is needed.
    """
    blocks = mesh.data * mesh.fsdp
    rows, *lengths = work.shape
    most = -(-rows // blocks)  # rows of a device
    multiple = work.config.batches.row_multiple
    state = state_bytes // (mesh.fsdp * mesh.tensor)
    found = []
    for again in (False, True):
        training = replace(work.config.training, rematerialise=again)
        config = replace(work.config, mesh=mesh, training=training)
        count = 1
        for _ in range(TRIES):
            height = -(-rows // (count * multiple)) * multiple
            figures = compile_one(work._replace(
                config=config, shape=(height, *lengths), microbatches=count,
                flops=work.flops * height // rows,
            ))  # fmt: skip
            fits, name = figures["fits"], describe.arrangement(figures)
            size = describe.in_gib(figures["bytes_per_device"])
            time = describe.in_all(figures) if fits else "does NOT fit"
            logger.info("            %s: %s, %s", name, size, time)
            if fits:
                found.append(figures)
                break
            spare = figures["bytes_available"] - state
            if count == most or spare <= 0:
                break
            needed = figures["bytes_per_device"] - state
            count = min(most, max(count + 1, math.ceil(count * needed / spare)))
        if found and count == 1:
            break
    return found
