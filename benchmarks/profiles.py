"""Where the time of a program goes on a device: a profile by kind, section and kernel.

The trace is that of JAX's profiler. A GPU's kernels are those of its streams; on a CPU,
where threads compute side by side, the instructions of the program count.
"""

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxformer.accelerators.chips import CHIPS, Chip
from jaxformer.accelerators.hlo import Program, section, summed
from jaxformer.accelerators.kernels import GpuProgram, kind_of

LARGEST = 10  # kernels that are listed
_WHOLE = re.compile(r"(while|call|conditional)\b")  # contain other instructions


class Kernel(NamedTuple):
    """What a device ran once."""

    name: str
    instruction: str  # of the program; "" if the trace does not say
    seconds: float


def read_kernels(file: Path) -> Iterator[Kernel]:
    """Yield the kernels of a trace, of the first device that has any."""
    trace = jax.profiler.ProfileData.from_file(str(file))
    planes = {plane.name: plane for plane in trace.planes}
    device = next((name for name in planes if name.startswith("/device:GPU")), None)
    for line in planes[device or "/host:CPU"].lines:
        if device and not line.name.startswith("Stream"):
            continue  # what the profiler sums up
        for event in line.events:
            instruction = dict(event.stats).get("hlo_op", "")
            if device or (instruction == event.name and not _WHOLE.match(instruction)):
                yield Kernel(event.name, instruction, event.duration_ns / 1e9)


def summarise(kernels: list[Kernel], text: str, times: int) -> dict[str, Any]:
    """Sum the kernels of `times` runs of a program, whose compiled text is given.

    Times are milliseconds of one run.
    """
    operations = Program(text).operations()
    # XLA names kernels as their instructions, where the trace names no instruction.
    by_kernel = {re.sub(r"\W", "_", name): name for name in operations}
    kinds, sections, largest = Counter(), Counter(), Counter()
    for kernel in kernels:
        instruction = kernel.instruction or by_kernel.get(kernel.name, "")
        kind, cost = kind_of(kernel.name, instruction), 1e3 * kernel.seconds / times
        operation = operations.get(instruction)
        where = ("unknown", "") if operation is None else section(operation)
        kinds[kind] += cost
        sections[(*where, kind)] += cost
        largest[(kernel.name, *where)] += cost
    return {
        "milliseconds": dict(kinds),
        "kernels": round(len(kernels) / times),
        "sections": [[*key, cost] for key, cost in sections.most_common()],
        "largest": [[*key, cost] for key, cost in largest.most_common(LARGEST)],
    }


def profile(run: Callable[[], Any], text: str, *, times: int) -> dict[str, Any]:
    """Trace a call that runs a compiled program `times` times, and `summarise` it.

    Raises RuntimeError if the trace has no kernel.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory(prefix="jaxformer-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        (file,) = Path(folder).rglob("*.xplane.pb")
        with warnings.catch_warnings():
            # jaxlib 0.12 warns of its own types, and aborts if warnings are errors.
            warnings.simplefilter("ignore", DeprecationWarning)
            kernels = list(read_kernels(file))
    if not kernels:
        raise RuntimeError("the profiler saw no kernel; may this process use CUPTI?")
    found = summarise(kernels, text, times)
    kind = jax.devices()[0].device_kind
    for chip in CHIPS.values():
        if not chip.is_tpu and chip.title.split()[0] in kind:
            found["at_least"] = bound(text, chip)
    return found


def bound(text: str, chip: Chip) -> dict[str, Any]:
    """Compute what a GPU's program takes at least, in the form of `summarise`."""
    parts = GpuProgram(text, chip).parts()
    kinds = summed((kind, cost, 1) for (*_, kind), cost in parts.items())
    return {
        "milliseconds": {kind: 1e3 * cost.seconds for kind, cost in kinds.items()},
        "kernels": sum(cost.kernels for cost in parts.values()),
        "sections": [[*part, 1e3 * cost.seconds] for part, cost in parts.items()],
    }
