"""Read an optimised program: what its parts cost, and what devices exchange.

The text is that of `jax.stages.Compiled.as_text()`. The TPU compiler writes an estimate
of cycles beside most instructions; collectives have none. A loop counts by its trip
count, where that is constant, and a conditional by its larger branch.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
BYTES |= {f"{sign}{8 * size}": size for sign in "su" for size in (1, 2, 4, 8)}
_KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
# Instructions of a GPU that launch a kernel.
KERNELS = ("fusion", "custom-call", "sort", "copy", "copy-start")
_NAME = r"%?([\w.\-]+)"
_COMPUTATION = re.compile(rf"(ENTRY )?{_NAME} \(.*\{{$")
_INSTRUCTION = re.compile(rf"\s+(ROOT )?{_NAME} = (.*?) ([a-z][\w\-]*)\(")
# Parts of an operation's name that JAX adds for transformations and control flow.
_NO_SCOPE = re.compile(
    r".*[(.>].*|while|body|cond|closed_call|branch_\d+_fun|checkpoint|remat\w*|pjit|"
    r"custom_[jv]\w+_call|shard_map|layer_\d+|"
)


Array = tuple[str, tuple[int, ...]]  # dtype and shape
Key = TypeVar("Key")
Part = tuple[str, str, str]  # section of the model, pass, and kind of kernel


class Cost(NamedTuple):
    """What instructions take."""

    seconds: float = 0.0
    bytes: int = 0  # of memory, read and written; of GPUs only, as is the next
    kernels: int = 0


def summed(costs: Iterable[tuple[Key, Cost, int]]) -> dict[Key, Cost]:
    """Sum costs by their keys, each as often as it says; the longest first."""
    found: dict[Key, Cost] = {}
    for key, cost, times in costs:
        pairs = zip(found.get(key, Cost()), cost, strict=True)
        found[key] = Cost(*(before + times * each for before, each in pairs))
    return dict(sorted(found.items(), key=lambda each: -each[1].seconds))


class Instruction(NamedTuple):
    """A line of a program."""

    is_root: bool
    name: str
    result: str  # its type, such as "f32[8,16]{1,0}"
    opcode: str
    line: str
    operation: str  # the name that JAX gave it: its scopes and the primitive

    def attribute(self, pattern: str) -> str | None:
        """Return the first group of a pattern in the line."""
        found = re.search(pattern, self.line)
        return found and found[1]

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        listed = self.attribute(rf" {self.opcode}\(([^)]*)\)") or ""
        return re.findall(r"%([\w.\-]+)", listed)

    @property
    def arrays(self) -> list[Array]:
        """Dtype and shape of each array of its result."""
        return arrays_in(self.result)

    @property
    def bytes(self) -> int:
        """The size of its result."""
        return sum(BYTES[dtype] * math.prod(shape) for dtype, shape in self.arrays)

    @property
    def kernel(self) -> str:
        """The name of a GPU's kernel: that in its library, or the opcode."""
        library = r'(?:custom_call_target="|"kind":"(?=__))([^"]*)"'
        return self.attribute(library) or self.opcode.removesuffix("-start")


class Collective(NamedTuple):
    """An instruction by which devices exchange data."""

    kind: str
    arrays: tuple[Array, ...]  # of its results
    group: int  # devices that exchange with one another; 0: all
    times: int  # that it runs

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(shape for _, shape in self.arrays)

    @property
    def bytes(self) -> int:
        """The size of the results on one device, each time it runs."""
        return sum(BYTES[dtype] * math.prod(shape) for dtype, shape in self.arrays)

    def sent(self, devices: int) -> float:
        """Bytes that a device sends by rings, all times; the program has `devices`."""
        n = self.group or devices
        factors = {
            "all-reduce": 2 * (n - 1) / n,
            "all-gather": (n - 1) / n,
            "reduce-scatter": n - 1,  # the result is the n-th part
            "collective-permute": 1,
        }
        return self.times * self.bytes * factors.get(self.kind, (n - 1) / n)


def arrays_in(text: str) -> list[Array]:
    """Return dtype and dimensions of each array, such as f32[8,16], in HLO."""
    found = re.findall(rf"\b({'|'.join(BYTES)})\[([\d,]*)\]", text)
    return [
        (kind, tuple(map(int, filter(None, dims.split(","))))) for kind, dims in found
    ]


class Program:
    """The computations of a program, with a TPU's `clock` in Hz."""

    def __init__(self, text: str, clock: float = 1.0) -> None:
        self._clock = clock
        self._named: dict[str, Instruction] = {}
        self._computations: dict[str, list[Instruction]] = {}
        self._entry = ""
        for line in text.splitlines():
            if head := _COMPUTATION.match(line):
                current = self._computations[head[2]] = []
                self._entry = head[2] if head[1] else self._entry
            elif found := _INSTRUCTION.match(line):
                root, *parts = found.groups()
                named = re.search(r'op_name="([^"]*)"', line)
                operation = named[1] if named else ""
                each = Instruction(bool(root), *parts, line, operation)
                current.append(each)
                self._named[each.name] = each

    def operations(self) -> dict[str, str]:
        """Map the names of instructions to the names that JAX gave them."""
        return {name: each.operation for name, each in self._named.items()}

    def parts(self) -> dict[Part, Cost]:
        """Sum the estimated cost by part; instructions without a cost are left out."""
        return summed(
            ((*section(each.operation), kind), cost, times)
            for each, times in self._run(self._entry)
            for kind, cost in [self._cost(each)]
            if any(cost)
        )

    def collectives(self) -> list[Collective]:
        """List what devices exchange; an asynchronous collective is listed once."""
        found: dict[str, Collective] = {}
        for each, times in self._run(self._entry, fusions=True):
            kind = each.opcode.removesuffix("-start")
            if kind not in _KINDS:
                continue
            arrays = arrays_in(each.result)
            if each.opcode.endswith("-start") and each.result.startswith("("):
                if kind == "collective-permute":
                    arrays = arrays[1:2]  # operand, result, and two numbers
                elif kind in ("all-gather", "reduce-scatter"):
                    arrays = arrays[len(arrays) // 2 :]  # operands, then results
            # Its pieces in several fusions are a chain; channels may be shared.
            key = each.attribute(r'chain_id="(\d+)"') or each.name
            if key in found:
                times = min(times, found[key].times)
            group = _group_size(each)
            found[key] = Collective(kind, tuple(arrays), group, times)
        return list(found.values())

    def kernels(self) -> Counter[str]:
        """Count the kernels of a GPU's program, those of libraries by their names."""
        found = Counter()
        for each, times in self._run(self._entry):
            if each.opcode in KERNELS:
                found[each.kernel] += times
        return found

    def _run(
        self, name: str, times: int = 1, inside: str = "", *, fusions: bool = False
    ) -> Iterator[tuple[Instruction, int]]:
        """Yield each instruction and the times that it runs.

        An instruction without an operation has that of the loop `inside` which it is.
        Within `fusions`, an all-reduce of which a share is kept is a reduce-scatter.
        """
        for each in self._computations[name]:
            if "/" not in each.operation:
                each = each._replace(operation=inside)
            yield each, times
            if each.opcode == "fusion" and not fusions:
                continue
            if re.search(r"calls=%?all-reduce-scatter", each.line):
                for inner in self._computations[self._called(each)[0]]:
                    if inner.opcode == "all-reduce":
                        inner = inner._replace(
                            opcode="reduce-scatter", result=each.result
                        )
                        yield inner, times
                continue
            repeats = times * (self._trips(each) if each.opcode == "while" else 1)
            for called in self._called(each):
                yield from self._run(called, repeats, each.operation, fusions=fusions)

    def _called(self, each: Instruction) -> list[str]:
        """The computations that an instruction runs."""
        match each.opcode:
            case "while":
                return [each.attribute(rf"body={_NAME}")]
            case "conditional":
                branches = each.attribute(r"branch_computations=\{([^}]*)\}")
                branches = branches or re.sub(
                    rf".*true_computation={_NAME}, false_computation={_NAME}.*",
                    r"\1,\2", each.line,
                )  # fmt: skip
                names = [branch.strip(" %") for branch in branches.split(",")]
                return [max(names, key=self._seconds)]
            case "call":
                return [each.attribute(rf"to_apply={_NAME}")]
            case "fusion" | "async-start":
                return [each.attribute(rf"calls={_NAME}")]
        return []

    def _trips(self, loop: Instruction) -> int:
        """The trips of a loop; 1 if the program decides them as it runs."""
        if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        condition = self._computations[loop.attribute(rf"condition={_NAME}")]
        constants = {
            each.name: each.attribute(r"constant\((\d+)\)") for each in condition
        }
        (root,) = (each for each in condition if each.is_root)
        limit = root.attribute(rf"compare\(.*, {_NAME}\), direction=LT")
        return int(constants.get(limit) or 1)

    def _seconds(self, name: str) -> float:
        return sum(n * self._cost(each)[1].seconds for each, n in self._run(name))

    def _cost(self, each: Instruction) -> tuple[str, Cost]:
        """The kind of an instruction, and what it takes each time that it runs."""
        cycles = each.attribute(r'estimated_cycles":"(\d+)"') or 0
        return "", Cost(int(cycles) / self._clock)


def _group_size(each: Instruction) -> int:
    """The devices of a replica group; 0 if all are one group."""
    if listed := each.attribute(r"replica_groups=\{\{([\d,]+)\}"):
        return listed.count(",") + 1
    if size := each.attribute(r"replica_groups=\[\d+,(\d+)\]"):
        return int(size)
    if mesh := each.attribute(r"replica_groups=mesh(\[[^}]*)\}"):
        sizes, _, axes = mesh.partition("{")
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", sizes))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", axes))
    return 0


def section(operation: str) -> tuple[str, str]:
    """Return the part of the model that an operation belongs to, and its pass.

    "encoder/self_attention/query" and "forward", for instance; layers are merged. The
    pass of the optimiser, and of programs without a gradient, is "".
    """
    if not operation:
        return "copies without a name", ""
    *scopes, _ = operation.split("/")
    is_backward, is_forward = "transpose(" in operation, "jvp(" in operation
    direction = "backward" if is_backward else "forward" * is_forward
    path: list[str] = []
    for scope in scopes:
        name = re.sub(r"^(?:transpose\()?jvp\((\w+)\)+$", r"\1", scope)
        name = "embedding" if re.search(r"\._embed|_take\b", scope) else name
        name = name.removesuffix("_sublayer")
        if name not in path and not _NO_SCOPE.fullmatch(name):
            path.append(name)
    if "embedding" in path:
        path = ["embedding"]
    return "/".join(path[:3]) or "other", direction
