"""benchmarks/profiles.py: kernels by kind, section and name."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import profiles
from benchmarks.profiles import Kernel
from jaxformer.accelerators.chips import CHIPS

PROGRAM = """
ENTRY %main (p: f32[2]) -> f32[2] {
  %fusion.1 = f32[2] fusion(%p), kind=kLoop, calls=%f, metadata={op_name="jit(update)/jvp()/encoder/layer_0/self_attention/add"}
  %custom-call.2 = f32[2] custom-call(%p), custom_call_target="__cublas$gemm", metadata={op_name="jit(update)/transpose(jvp(loss))/dot_general"}
  %copy.3 = f32[2] copy(%p)
}
"""  # noqa: E501


def test_kernels_are_summed_by_kind_section_and_name():
    kernels = [
        Kernel("fusion_1", "", 0.002),  # by the name of its instruction
        Kernel("fusion_1", "fusion.1", 0.002),
        Kernel("nvjet_hsh_128x256", "custom-call.2", 0.006),
        Kernel("cudnn_generated_fort_native_sdpa", "", 0.001),
        Kernel("copy_3", "copy.3", 0.001),
    ]
    found = profiles.summarise(kernels, PROGRAM, times=2)
    expected = {"others": 2.5, "products": 3, "attention": 0.5}
    assert found["milliseconds"] == pytest.approx(expected)
    assert found["kernels"] == 2
    sections = {tuple(keys): cost for *keys, cost in found["sections"]}
    assert sections["encoder/self_attention", "forward", "others"] == pytest.approx(2)
    assert sections["loss", "backward", "products"] == pytest.approx(3)
    assert sections["unknown", "", "attention"] == pytest.approx(0.5)
    assert found["largest"][0][0] == "nvjet_hsh_128x256"


def test_a_trace_names_the_instructions_of_the_program():
    function = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((64, 64))
    text = function.lower(x).compile().as_text()

    def run():
        for _ in range(3):
            function(x).block_until_ready()

    found = profiles.profile(run, text, times=3)
    assert 0 < found["kernels"] < 20
    assert sum(found["milliseconds"].values()) > 0
    assert all(where != "unknown" for where, *_ in found["sections"])


def test_a_profile_stands_beside_what_the_kernels_take_at_least():
    """A copy reads and writes 67 MB, at 3,350 GB/s."""
    text = """
ENTRY %main (p: f32[16750000]) -> f32[16750000] {
  %p = f32[16750000] parameter(0)
  ROOT %copy.3 = f32[16750000] copy(%p), metadata={op_name="jit(update)/loss/copy"}
}
"""
    assert profiles.bound(text, CHIPS["h100"]) == {
        "milliseconds": {"others": pytest.approx(0.04)},
        "kernels": 1,
        "sections": [["loss", "", "others", pytest.approx(0.04)]],
    }


TRACE = """
planes { name: "/host:CPU" lines { id: 1 name: "python" } }
planes {
  id: 1 name: "/device:GPU:0"
  event_metadata { key: 1 value { id: 1 name: "nvjet_hsh_128x256" } }
  event_metadata { key: 2 value { id: 2 name: "MemcpyH2D" } }
  event_metadata { key: 3 value { id: 3 name: "overhead" } }
  stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }
  stat_metadata { key: 2 value { id: 2 name: "custom-call.2" } }
  lines {
    id: 20 name: "Stream #20(Kernel,MemcpyD2D)" timestamp_ns: 1000
    events {
      metadata_id: 1 offset_ps: 0 duration_ps: 6000000
      stats { metadata_id: 1 ref_value: 2 }
    }
  }
  lines {
    id: 21 name: "Stream #21(MemcpyH2D)" timestamp_ns: 1000
    events { metadata_id: 2 offset_ps: 0 duration_ps: 1000000 }
  }
  lines {
    id: 22 name: "CUPTI overhead" timestamp_ns: 1000
    events { metadata_id: 3 offset_ps: 0 duration_ps: 1000000 }
  }
}
"""


@pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")
def test_the_kernels_of_a_gpu_are_those_of_its_streams(tmp_path):
    file = tmp_path / "a.xplane.pb"
    data = jax.profiler.ProfileData
    file.write_bytes(data.text_proto_to_serialized_xspace(TRACE))
    kernels = list(profiles.read_kernels(file))
    assert kernels == [
        Kernel("nvjet_hsh_128x256", "custom-call.2", pytest.approx(6e-6)),
        Kernel("MemcpyH2D", "", pytest.approx(1e-6)),
    ]


def test_a_profile_without_kernels_is_an_error(monkeypatch):
    monkeypatch.setattr(profiles, "read_kernels", lambda _: iter(()))
    with pytest.raises(RuntimeError, match="no kernel"):
        profiles.profile(lambda: None, "", times=1)
