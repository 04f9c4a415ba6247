"""A GPU's program: what its kernels take at least.

XLA's compiler for GPUs estimates no time. A kernel takes the larger of two times: that
of its bytes at the memory's rate, and that of its matrix products at the peak of their
type. Slices and gathers read what they take; updates in place write what they change.
"""

import math
import re

from jaxformer.accelerators.chips import Chip
from jaxformer.accelerators.hlo import BYTES, KERNELS, Cost, Instruction, Program

# Kinds of kernels by their names and those of their instructions, the first that fits.
KINDS = {
    "attention": r"cudnn(?!.*(gemm|matmul|conv))|fmha|sdpa|flash|dot_product_attention",
    "products": r"gemm|cublas|cutlass|nvjet|matmul|dot",
    "copies from and to the host": r"memcpy|memset",
    "others": r"",
}


def kind_of(kernel: str, instruction: str) -> str:
    """Return the kind of a kernel with its instruction, by their names."""
    names = f"{kernel} {instruction}"
    return next(kind for kind in KINDS if re.search(KINDS[kind], names, re.I))


class GpuProgram(Program):
    """A program of a GPU, with the data sheet of its chip."""

    def __init__(self, text: str, chip: Chip) -> None:
        super().__init__(text)
        self._chip = chip

    def _cost(self, each: Instruction) -> tuple[str, Cost]:
        if each.opcode not in KERNELS:
            return "", Cost()
        moved = self._moved(each)
        seconds = max(moved / self._chip.memory_rate, self._at_peak(each))
        kernel = each.kernel
        if each.opcode == "fusion":  # may be a library's call with its slices
            body = self._computations[self._called(each)[0]]
            calls = (inner.kernel for inner in body if inner.opcode == "custom-call")
            kernel = next(calls, kernel)
        return kind_of(kernel, each.name), Cost(seconds, moved, kernels=1)

    def _operands(self, each: Instruction) -> list[Instruction]:
        return [self._named[name] for name in each.operands]

    def _moved(self, each: Instruction) -> int:
        """Bytes that a kernel reads and writes."""
        if each.opcode == "fusion":
            body = self._computations[self._called(each)[0]]
            arrays = (inner for inner in body if inner.opcode == "parameter")
            (root,) = (inner for inner in body if inner.is_root)
            return sum(_read(each, body) for each in arrays) + self._written(root)
        read = sum(operand.bytes for operand in self._operands(each))
        if each.opcode == "copy-start":  # its result names the operand too
            return 2 * read
        # The last result of a library's call may be its workspace.
        workspace = each.attribute(r"^[^(]*\(.*, [su]8\[(\d+)\]\{0\}\) custom-call\(")
        return read + each.bytes - int(workspace or 0)

    def _written(self, root: Instruction) -> int:
        """Bytes that a fusion writes, whose computation has this root."""
        operands = self._operands(root)
        match root.opcode:
            case "tuple" | "bitcast":
                return sum(map(self._written, operands))
            case "dynamic-update-slice":
                return operands[1].bytes
            case "get-tuple-element" if root.result.startswith("s8["):
                return 0  # the workspace of a library's call
            case "scatter":  # arrays, indices, then the updates: read and written again
                return 2 * sum(
                    each.bytes for each in operands[len(operands) // 2 + 1 :]
                )
        return root.bytes

    def _at_peak(self, each: Instruction) -> float:
        """Seconds of a kernel's matrix products at the peak of their type.

        The peak doubles as the bytes of a number halve; float32 is computed in TF32.
        """
        if each.opcode == "fusion":
            inner = self._run(self._called(each)[0], fusions=True)
            products = "dot", "custom-call"
            return sum(n * self._at_peak(i) for i, n in inner if i.opcode in products)
        if not (depth := self._depth(each)):
            return 0.0
        width = max(BYTES[factor.arrays[0][0]] for factor in self._operands(each)[:2])
        (_, shape), *_ = each.arrays
        return 2 * math.prod(shape) * depth * width / BYTES["bf16"] / self._chip.peak

    def _depth(self, each: Instruction) -> int:
        """Numbers that products sum for each of a kernel's first result."""
        scores = r'"intermediate_tensor_shape".*?"dimensions": ?\[([^\]]*)\]'
        if shape := each.attribute(scores):  # of cuDNN's attention
            *_, keys = re.findall(r"\d+", shape)
            return int(keys) * (5 if "Backward" in each.kernel else 2)
        axes = each.attribute(r'lhs_contracting_dim\w+"?[=:][{\[]([^}\]]*)')
        if axes is None:
            return 0
        (_, shape), *_ = self._operands(each)[0].arrays
        return math.prod(shape[int(axis)] for axis in re.findall(r"\d+", axes))


def _read(array: Instruction, body: list[Instruction]) -> int:
    """Bytes that a fused computation reads of an array."""
    read = 0
    for user in (each for each in body if array.name in each.operands):
        is_first = user.operands[0] == array.name
        if user.opcode in ("bitcast", "reshape"):
            read += _read(user, body)
        elif is_first and user.opcode in ("slice", "dynamic-slice", "gather"):
            read += user.bytes
        elif not (is_first and user.opcode in ("dynamic-update-slice", "scatter")):
            return array.bytes
    return min(array.bytes, read)
