"""The configuration of a G10 run: units, what may be left out, what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from foreign import CONFIG

from teraio.profiler.errors import BadInputError
from teraio.profiler.importers.g10_config import G10Config, read_config
from teraio.profiler.importers.lines import lines_of


def _config(text: str) -> G10Config:
    return read_config(lines_of("toy.config", text.encode()))


def test_units_are_those_of_g10() -> None:
    assert _config(CONFIG) == G10Config(
        frequency_hz=Fraction(1_200_000_000),
        gpu_bytes=40 << 30,
        host_bytes=128 << 30,
        gpu_link_bytes_per_s=15_754_000_000,
        host_link_bytes_per_s=15_754_000_000,
        ssd_bytes_per_s=3_200_000_000,
        ssd_read_latency_ns=12_000,
        ssd_write_latency_ns=16_000,
    )


def test_what_is_left_out_is_not_known_but_the_frequency() -> None:
    assert read_config(None) == _config("is_UVM 1 # all else\n") == G10Config()
    assert G10Config().frequency_hz == 1_200_000_000
    assert _config("CPU_memory_line_GB -1").host_bytes is None
    assert _config("CPU_memory_line_GB 0").host_bytes == 0


BROKEN = {
    "GPU_memory_size_GB": "expected `GPU_memory_size_GB` and a number",
    "GPU_memory_size_GB 40 GB": "and a number",
    "GPU_memory_size_GB x": "and a number",
    "GPU_memory_size_GB 0": "in its range",
    "GPU_memory_size_GB 1e3": "and a number",
    "GPU_memory_size_GB nan": "and a number",
    "SSD_PCIe_bandwidth_GBps 99999999999999999999": "in its range",
    "GPU_frequency_GHz 0": "in its range",
    "GPU_memory_size_GB 40\nGPU_memory_size_GB 41": "`GPU_memory_size_GB` is there twice",
}


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_broken_is_named_with_file_and_line(text: str) -> None:
    line = text.count("\n") + 2
    with pytest.raises(BadInputError) as caught:
        _config("is_UVM 1\n" + text)
    assert str(caught.value).startswith(f"`toy.config`, line {line}: ")
    assert BROKEN[text] in str(caught.value)
