"""What is read from the text of optimised programs: small ones, counted by hand."""

import pytest

from jaxformer.accelerators.hlo import Collective, Cost, Program, section, summed

LOOPS = """\
HloModule jit_update

%fused (p: f32[4]) -> f32[4] {
  ROOT %n = f32[4]{0} negate(%p), backend_config={"estimated_cycles":"999"}
}

%cond (arg: (s32[], f32[4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  %i = s32[] get-tuple-element(%arg), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%body (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %a = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"10"}
  %b = f32[4]{0} copy(%a), metadata={op_name="jit(update)/mul"}, backend_config={"estimated_cycles":"2"}
}

%asked (arg: (s32[])) -> pred[] {
  %steps = s32[] get-tuple-element(%arg), index=0
  %zero = s32[] constant(7)
  ROOT %gt = pred[] compare(%zero, %steps), direction=GT
}

%small (p: f32[4]) -> f32[4] {
  ROOT %c = f32[4]{0} copy(%p), metadata={op_name="jit(update)/small/copy"}, backend_config={"estimated_cycles":"100"}
}

%large (p: f32[4]) -> f32[4] {
  ROOT %c = f32[4]{0} copy(%p), metadata={op_name="jit(update)/large/copy"}, backend_config={"estimated_cycles":"300"}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %known = (s32[], f32[4]) while(%t), condition=%asked, body=%body, metadata={op_name="jit(update)/known/while"}, backend_config={"known_trip_count":{"n":"3"}}
  %counted = (s32[], f32[4]) while(%t), condition=%cond, body=%body, metadata={op_name="jit(update)/counted/while"}
  %decided = (s32[], f32[4]) while(%t), condition=%asked, body=%body, metadata={op_name="jit(update)/decided/while"}
  %two = f32[4] conditional(%i, %p, %p), branch_computations={%small, %large}
  %either = f32[4] conditional(%q, %p, %p), true_computation=%large, false_computation=%small
  %called = f32[4] call(%p), to_apply=%small
  %wrapped = ((f32[4]), f32[4]) async-start(%p), calls=%large
  ROOT %last = f32[4] copy(%p), backend_config={"estimated_cycles":"1"}
}
"""  # noqa: E501


def test_cycles_are_multiplied_by_trips_and_taken_from_the_larger_branch():
    """Fusions carry their own; what has no name is part of the loop around it."""
    parts = Program(LOOPS, clock=10).parts()
    assert {part: 10 * cost.seconds for (part, *_), cost in parts.items()} == {
        "known": 3 * 10,
        "counted": 5 * 10,
        "decided": 10,  # as often as the program decides
        "other": (3 + 5 + 1) * 2,
        "large": 3 * 300,  # two conditionals and the asynchronous wrapper
        "small": 100,
        "copies without a name": 1,
    }


def test_costs_are_summed_by_part_the_longest_first():
    costs = [("a", Cost(1, 2, 1), 1), ("b", Cost(5), 2), ("a", Cost(3, 4, 1), 2)]
    assert list(summed(costs).items()) == [("b", Cost(10)), ("a", Cost(7, 10, 3))]


COLLECTIVES = """\
%gather (p: bf16[2,8]) -> bf16[16,8] {
  %g = bf16[16,8]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=20, replica_groups=mesh['axis_0'=1,'axis_1'=4,'axis_2'=2] {'axis_1','axis_2'}, dimensions={0}, frontend_attributes={chain_id="3"}
  ROOT %c = (bf16[2,8], bf16[16,8]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%go_on (p: bf16[2,8]) -> bf16[16,8] {
  ROOT %h = bf16[16,8]{1,0} all-gather(%p), channel_id=20, replica_groups=[1,8]<=[8], frontend_attributes={chain_id="3"}
}

%body (arg: (s32[])) -> (s32[]) {
  %f = bf16[16,8] fusion(%x), kind=kOutput, calls=%go_on
  %r = f32[4]{0} reduce-scatter(%x), channel_id=2, replica_groups=[4,2]<=[8], to_apply=%add
}

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b), metadata={op_name="all-reduce(me)"}
}

%all-reduce-scatter.1 (p: f32[32]) -> f32[8] {
  %whole = f32[32]{0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %mine = f32[8]{0} dynamic-slice(%whole, %i), dynamic_slice_sizes={8}
}

ENTRY %main (p: f32[2,3], q: s32[]) -> f32[2] {
  %begin = (bf16[2,8], bf16[16,8]) fusion(%p), kind=kCustom, calls=%gather
  %loop = (s32[]) while(%t), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %sum = (f32[2,3]{1,0}, /*index=1*/bf16[5]{0}) all-reduce(%p, %q), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %permute = (bf16[64]{0}, bf16[64]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p), channel_id=5, source_target_pairs={{0,1},{1,0}}
  %done = bf16[64]{0} collective-permute-done(%permute)
  %part = (f32[2], f32[16]) all-gather-start(%p), channel_id=5, replica_groups=[1,8]<=[8]
  %share = f32[8]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
  %sums = ((f32[16], f32[8]), (f32[4], f32[2])) reduce-scatter-start(%p, %p), channel_id=6, replica_groups=[1,4]<=[4]
  %s = f32[] all-reduce-start(%q), channel_id=7
  ROOT %t = f32[] all-reduce-done(%s)
}
"""  # noqa: E501
BF16, F32 = "bf16", "f32"


def test_collectives_are_counted_once_with_their_bytes():
    """Kind, arrays, devices of a group, times; bytes that a device sends.

    The gather of chain 3 begins once; three trips of a loop work on it. A channel may
    be that of several collectives.
    """
    found = Program(COLLECTIVES).collectives()
    assert found == [
        Collective("all-gather", ((BF16, (16, 8)),), 8, 1),
        Collective("reduce-scatter", ((F32, (4,)),), 2, 3),
        Collective("all-reduce", ((F32, (2, 3)), (BF16, (5,))), 4, 1),
        Collective("collective-permute", ((BF16, (64,)),), 0, 1),
        Collective("all-gather", ((F32, (16,)),), 8, 1),
        Collective("reduce-scatter", ((F32, (8,)),), 4, 1),
        Collective("reduce-scatter", ((F32, (4,)), (F32, (2,))), 4, 1),
        Collective("all-reduce", ((F32, ()),), 0, 1),
    ]
    assert [each.bytes for each in found] == [256, 16, 34, 128, 64, 32, 24, 4]
    assert [each.sent(8) for each in found] == [
        256 * 7 / 8,
        3 * 16 * 1,
        34 * 2 * 3 / 4,
        128,
        64 * 7 / 8,
        32 * 3,
        24 * 3,
        4 * 2 * 7 / 8,
    ]


def test_kernels_of_a_gpu_are_fusions_and_custom_calls():
    text = """\
%body (p: f32[4]) -> f32[4] {
  %a = f32[4] fusion(%x), kind=kLoop, calls=%f
  ROOT %m = f32[4] custom-call(%a), custom_call_target="__cublas$gemm"
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %loop = f32[4] while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"2"}}
  %b = f32[4] fusion(%x), kind=kLoop, calls=%f
  %d = f32[4] fusion(%x), kind=kCustom, calls=%f, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  ROOT %n = f32[4] negate(%b)
}
"""  # noqa: E501
    assert Program(text).kernels() == {
        "fusion": 3, "__cublas$gemm": 2, "__triton_gemm": 1
    }  # fmt: skip


FORWARD = "jit(update)/jvp(Net.features)/Net.hidden/"
BACKWARD = "jit(update)/transpose(jvp(Net.features))/Net.hidden/"
ATTENTION = "encoder/layer_3/self_attention_sublayer/self_attention"


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (f"{FORWARD}Net.encode/{ATTENTION}/query/dot_general",
         ("encoder/self_attention/query", "forward")),
        (f"{BACKWARD}{ATTENTION}/bhts,bshu->bthu/dot_general",
         ("encoder/self_attention", "backward")),
        (f"{BACKWARD}checkpoint/rematted_computation/decoder/layer_0/"
         "feed_forward_sublayer/norm/mul", ("decoder/feed_forward/norm", "backward")),
        (f"{FORWARD}Net.encode/Net._embed/dropout/xor", ("embedding", "forward")),
        ("jit(update)/transpose(jvp(vmap(jit(_take))))/scatter-add",
         ("embedding", "backward")),
        ("jit(update)/jvp(loss)/while/body/closed_call/mv,md->vd/dot_general",
         ("loss", "forward")),
        ("jit(update)/transpose(jvp(loss))/mul", ("loss", "backward")),
        ("jit(update)/optimizer/cond/branch_1_fun/add", ("optimizer", "")),
        ("jit(update)/optimizer/cond", ("optimizer", "")),
        ("jit(update)/exchange/shard_map/all_gather", ("exchange", "")),
        ("jit(_advance)/while/body/top_k", ("other", "")),
        ("", ("copies without a name", "")),
    ],
)  # fmt: skip
def test_operations_belong_to_sections_of_the_model(operation, expected):
    assert section(operation) == expected
