"""Names of topologies."""

import pytest

from jaxformer.accelerators.chips import CHIPS, parse_topology
from jaxformer.system.errors import InputError


@pytest.mark.parametrize(
    ("name", "chips", "devices", "platform"),
    [
        ("v5e:2x4", 8, 8, "tpu"),
        ("v5e:1x1", 1, 1, "tpu"),
        ("v6e:16x16", 256, 256, "tpu"),
        ("v5p:2x2x1", 4, 4, "tpu"),
        ("v5p:2x2x3", 12, 12, "tpu"),
        ("v4:2x2x1", 4, 8, "tpu"),  # the compiler sees the cores of a chip
        ("h200", 1, 1, "cuda"),
        ("h100:8", 8, 8, "cuda"),
    ],
)
def test_a_topology_is_a_number_of_chips(name, chips, devices, platform):
    found = parse_topology(name)
    assert found.chips == chips
    assert found.devices == devices
    assert found.platform == platform
    assert found.chip is CHIPS[name.partition(":")[0]]


@pytest.mark.parametrize(
    "name",
    ["v5e", "v5e:8", "v5e:2x3", "v5e:2x2x1", "v5p:2x2", "v5p:3x2x1", "v4:1x1x1",
     "v5e:0x2", "v5e:2x", "h100:2x4", "h100:0", "h100:-1", "b200:8", "", "tpu"],
)  # fmt: skip
def test_other_names_are_refused_with_those_that_work(name):
    with pytest.raises(InputError, match=r"there is no topology .* v5e:2x4"):
        parse_topology(name)


def test_the_text_for_a_gpus_compiler_has_the_chips_figures():
    text = CHIPS["h200"].target_config
    for line in (
        "memory_bandwidth: 4800000000000",
        "device_memory_size: 141000000000",
        "cuda_compute_capability { major: 9 }",
        'device_description_str: "NVIDIA H200 SXM"',
    ):
        assert line in text
    assert "%" not in text
