"""What a GPU's kernels take at least: small programs, counted by hand."""

import pytest

from jaxformer.accelerators.chips import CHIPS
from jaxformer.accelerators.hlo import Cost
from jaxformer.accelerators.kernels import GpuProgram, kind_of

# 100 bytes a second; 1,000 operations a second with 16 bits, 500 with 32.
CHIP = CHIPS["h100"]._replace(memory_rate=100, peak=1000)


def cost(body, *computations, chip=CHIP):
    """Return the only cost of an entry with arguments of several types."""
    text = "\n\n".join([*computations, f"""\
ENTRY %main (f: f32[10,4], h: bf16[8,4], i: s32[]) -> f32[] {{
  %f = f32[10,4]{{1,0}} parameter(0)
  %h = bf16[8,4]{{1,0}} parameter(1)
  %i = s32[] parameter(2)
  {body}
}}"""])  # fmt: skip
    (found,) = GpuProgram(text, chip).parts().values()
    return found


SLICE = """\
%fused (p: f32[10,4], q: s32[], unused: f32[10,4]) -> f32[2,4] {
  %p = f32[10,4]{1,0} parameter(0)
  %q = s32[] parameter(1)
  %unused = f32[10,4]{1,0} parameter(2)
  %flat = f32[40]{0} bitcast(%p)
  %rows = f32[8]{0} dynamic-slice(%flat, %q), dynamic_slice_sizes={8}
  ROOT %back = f32[2,4]{1,0} bitcast(%rows)
}"""
UPDATE = """\
%fused (p: f32[10,4], q: f32[1,4], r: s32[]) -> (f32[10,4], f32[4]) {
  %p = f32[10,4]{1,0} parameter(0)
  %q = f32[1,4]{1,0} parameter(1)
  %r = s32[] parameter(2)
  %put = f32[10,4]{1,0} dynamic-update-slice(%p, %q, %r, %r)
  %row = f32[4]{0} bitcast(%q)
  ROOT %both = (f32[10,4]{1,0}, f32[4]{0}) tuple(%put, %row)
}"""
SCATTER = """\
%fused (p: f32[10,4], q: s32[3], r: f32[3,4]) -> f32[10,4] {
  %p = f32[10,4]{1,0} parameter(0)
  %q = s32[3]{0} parameter(1)
  %r = f32[3,4]{1,0} parameter(2)
  ROOT %add = f32[10,4]{1,0} scatter(%p, %q, %r), to_apply=%sum
}"""
TWICE = """\
%fused (p: f32[10,4]) -> f32[10,4] {
  %p = f32[10,4]{1,0} parameter(0)
  %row = f32[1,4]{1,0} slice(%p), slice={[0:1], [0:4]}
  ROOT %sum = f32[10,4]{1,0} add(%p, %p)
}"""


FUSION = "ROOT %a = f32[10,4] fusion(%f, %i, %f), kind=kLoop, calls=%fused"


@pytest.mark.parametrize(
    ("body", "computation", "expected"),
    [
        (FUSION, SLICE, 8 * 4 + 4 + 8 * 4),
        (FUSION.replace("%i", "%f"), UPDATE, 4 * 4 + 4 + 4 * 4 + 4 * 4),
        (FUSION, SCATTER, 3 * 4 + 12 * 4 + 2 * 12 * 4),
        (FUSION, TWICE, 2 * 160),
        ("ROOT %a = f32[10,4]{1,0} copy(%f)", "", 320),
        ("ROOT %a = (f32[10,4]{1,0}, f32[10,4]{1,0}, u32[]) copy-start(%f)", "", 320),
        ("ROOT %a = (f32[10,4]{1,0}, s32[10,4]{1,0}) sort(%f, %f)", "", 640),
        ('ROOT %a = (f32[4]{0}, s8[999]{0}) custom-call(%f, /*index=1*/%h), '
         'custom_call_target="__gpu$xla.gpu.triton"', "", 160 + 64 + 16),
    ],
    ids=["slice", "update", "scatter", "whole", "copy", "copy-start", "sort", "Pallas"],
)  # fmt: skip
def test_a_kernel_moves_what_it_takes_and_changes(body, computation, expected):
    """The last result of a library's call is its workspace."""
    assert cost(body, computation) == Cost(expected / 100, expected, 1)


DOT = """\
%fused (p: TYPE[8,4], q: TYPE[8,4]) -> f32[8,8] {
  %p = TYPE[8,4]{1,0} parameter(0)
  %q = TYPE[8,4]{1,0} parameter(1)
  ROOT %d = f32[8,8]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}"""  # noqa: E501
GEMM = """ROOT %a = (f32[8,8]{1,0}, s8[99]{0}) custom-call(%h, %h), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}"""  # noqa: E501
SLICED = """\
%fused (p: bf16[2,8,4], q: bf16[8,4]) -> (f32[8,8], s8[99]) {
  %p = bf16[2,8,4]{2,1,0} parameter(0)
  %q = bf16[8,4]{1,0} parameter(1)
  %s = bf16[8,4]{1,0} slice(%p), slice={[1:2], [0:8], [0:4]}
  %c = (f32[8,8]{1,0}, s8[99]{0}) custom-call(%s, %q), custom_call_target="__cublas$lt$matmul", backend_config={"lhs_contracting_dimensions":["1"]}
  %d = f32[8,8]{1,0} get-tuple-element(%c), index=0
  %w = s8[99]{0} get-tuple-element(%c), index=1
  ROOT %both = (f32[8,8]{1,0}, s8[99]{0}) tuple(%d, %w)
}"""  # noqa: E501
FUSED = 'ROOT %a = f32[8,8]{1,0} fusion(%h, %h), kind=kCustom, calls=%fused, backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}'  # noqa: E501


@pytest.mark.parametrize(
    ("body", "computation", "expected"),
    [
        (FUSED, DOT.replace("TYPE", "bf16"), 0.512),
        (FUSED, DOT.replace("TYPE", "f32"), 2 * 0.512),
        (GEMM, "", 0.512),
        (FUSED.replace("__triton_nested_gemm", "__custom"), SLICED, 0.512),
    ],
    ids=["bfloat16", "float32", "cuBLAS", "cuBLAS, with its slices"],
)
def test_a_product_takes_its_operations_or_its_bytes(body, computation, expected):
    """It has 2 x 8 x 8 x 4 = 512 operations."""
    size = 2 * 32 * (4 if "f32[8,4]" in computation else 2) + 64 * 4
    assert cost(body, computation) == Cost(size / 100, size, 1)
    quick = CHIP._replace(memory_rate=1e9)
    assert cost(body, computation, chip=quick) == Cost(expected, size, 1)
    text = f"{computation}\n\nENTRY %main (h: bf16[8,4]) -> f32[] {{\n  "
    text += f"%h = bf16[8,4]{{1,0}} parameter(0)\n  {body}\n}}"
    ((*_, kind),) = GpuProgram(text, CHIP).parts()
    assert kind == "products"


ATTENTION = """\
ENTRY %main (q: bf16[2,5,3,4]) -> bf16[2,3,5,4] {
  %q = bf16[2,5,3,4]{3,2,1,0} parameter(0)
  %k = bf16[2,7,3,4]{3,2,1,0} parameter(1)
  ROOT %dot_product_attention_fwd.1 = (bf16[2,3,5,4]{3,1,2,0}, f32[2,3,5]{2,1,0}, u8[0]{0}) custom-call(%q, %k, %k), custom_call_target="__cudnn$fmhaSoftmax", metadata={op_name="jit(update)/jvp(encoder)/attend"}, backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "3", "5", "7"], "tuple_shapes": []}}}
}
"""  # noqa: E501


def test_attention_has_two_products_forward_and_five_backward():
    """Each has 2 x 2 x 3 x 5 x 7 x 4 operations."""
    moved = 2 * (2 * 3 * 5 * 4 + 2 * 2 * 3 * 7 * 4 + 2 * 3 * 5 * 4) + 4 * 2 * 3 * 5
    chip = CHIP._replace(memory_rate=1e9)
    for name, products in {"Softmax": 2, "SoftmaxBackward": 5}.items():
        text = ATTENTION.replace("fmhaSoftmax", f"fmha{name}")
        assert GpuProgram(text, chip).parts() == {
            ("encoder", "forward", "attention"): Cost(1.68 * products, moved, 1)
        }


def test_a_conditional_counts_by_the_longer_branch():
    branch = "%NAME (p: f32[SIZE]) -> f32[SIZE] {\n  %p.NAME = f32[SIZE] parameter(0)\n"
    branch += "  ROOT %c.NAME = f32[SIZE] copy(%p.NAME)\n}"
    small, large = (
        branch.replace("NAME", name).replace("SIZE", size)
        for name, size in {"small": "1", "large": "10"}.items()
    )
    two = "ROOT %two = f32[] conditional(%i), branch_computations={%small, %large}"
    assert cost(two, small, large) == Cost(0.8, 80, 1)


@pytest.mark.parametrize(
    ("kernel", "instruction", "kind"),
    [
        ("nvjet_hsh_128x256", "custom-call.2", "products"),
        ("__cudnn$fusion", "gemm_fusion_dot.1", "products"),
        ("__cudnn$convForward", "custom-call.7", "others"),
        ("__cudnn$fmhaScaleBiasSoftmax", "dot_product_attention_fwd.90", "attention"),
        ("cudnn::fusion::compute_dot_do_o_tensor_core", "", "attention"),
        ("MemcpyH2D", "", "copies from and to the host"),
        ("fusion", "input_reduce_fusion.3", "others"),
    ],
)
def test_kinds_are_told_by_names(kernel, instruction, kind):
    assert kind_of(kernel, instruction) == kind
