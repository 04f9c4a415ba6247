"""Read an optimised program: its estimated cycles, and what devices exchange.

The text is that of `jax.stages.Compiled.as_text()`. The TPU compiler writes an estimate
of cycles beside most instructions; collectives have none. A loop counts by its trip
count, where that is constant, and a conditional by its larger branch.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_BYTES |= {f"{sign}{8 * size}": size for sign in "su" for size in (1, 2, 4, 8)}
_KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
_NAME = r"%?([\w.\-]+)"
_COMPUTATION = re.compile(rf"(ENTRY )?{_NAME} \(.*\{{$")
_INSTRUCTION = re.compile(rf"\s+(ROOT )?{_NAME} = (.*?) ([a-z][\w\-]*)\(")
# Parts of an operation's name that JAX adds for transformations and control flow.
_NO_SCOPE = re.compile(
    r".*[(.>].*|while|body|cond|closed_call|branch_\d+_fun|checkpoint|remat\w*|pjit|"
    r"custom_[jv]\w+_call|shard_map|layer_\d+|"
)


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


class Collective(NamedTuple):
    """An instruction by which devices exchange data."""

    kind: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]  # dtypes and shapes of its results
    group: int  # devices that exchange with one another; 0: all
    times: int  # that it runs

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(shape for _, shape in self.arrays)

    @property
    def bytes(self) -> int:
        """The size of the results on one device, each time it runs."""
        return sum(_BYTES[dtype] * math.prod(shape) for dtype, shape in self.arrays)

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


def arrays_in(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return dtype and dimensions of each array, such as f32[8,16], in HLO."""
    found = re.findall(rf"\b({'|'.join(_BYTES)})\[([\d,]*)\]", text)
    return [
        (kind, tuple(map(int, filter(None, dims.split(","))))) for kind, dims in found
    ]


class Program:
    """The computations of a program."""

    def __init__(self, text: str) -> None:
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
                current.append(Instruction(bool(root), *parts, line, operation))

    def operations(self) -> dict[str, str]:
        """Map the names of instructions to the names that JAX gave them."""
        lines = [each for part in self._computations.values() for each in part]
        return {each.name: each.operation for each in lines}

    def cycles(self) -> Counter[str]:
        """Sum the estimated cycles of each operation."""
        return self._cycles(self._entry)

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
            if each.opcode in ("fusion", "custom-call", "sort", "copy", "copy-start"):
                library = r'(?:custom_call_target="|"kind":"(?=__))([^"]*)"'
                kernel = each.attribute(library) or each.opcode.removesuffix("-start")
                found[kernel] += times
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
                return [max(names, key=lambda name: self._cycles(name).total())]
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

    def _cycles(self, name: str) -> Counter[str]:
        found = Counter()
        for each, times in self._run(name):
            if own := each.attribute(r'estimated_cycles":"(\d+)"'):
                found[each.operation] += times * int(own)
        return found


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
