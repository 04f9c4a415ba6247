"""Made-up answers of a compiler."""

from collections import Counter

from jaxformer.accelerators.estimate import UNKNOWN, Compiled, Exchange, ProgramFacts
from jaxformer.accelerators.hlo import Cost
from jaxformer.training.memory import StepMemory

LOSS = {("loss", "forward", ""): Cost(0.002), ("loss", "backward", ""): Cost(0.001)}
SUMS = {("all-reduce", "f32"): Exchange(2, 50_000_000, 10)}


def program(arguments=100, parts=LOSS, collectives=SUMS, kernels=(("fusion", 7),)):
    memory = StepMemory(arguments, temporary=20, outputs=3)
    counts = dict(parts), collectives, Counter(dict(kernels))
    return ProgramFacts(sum(memory), memory, *counts, has_float64=False)


def too_large(needed):
    return ProgramFacts(needed, UNKNOWN, {}, {}, Counter(), False)


def answer(**programs):
    mesh = {"data": 4, "fsdp": 1, "tensor": 1}
    return Compiled(mesh, (8, 16, 16), programs)
