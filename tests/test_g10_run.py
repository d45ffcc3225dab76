"""The hardware of a G10 run, and G10's own plan as actions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from foreign import CONFIG, TOY, run_files

from teraio.planner.check import check_plan
from teraio.planner.g10_run import (
    NAME,
    Eviction,
    g10_plan,
    hardware_of,
    memory_of,
    read_guide,
)
from teraio.planner.plan import HOST, SSD, Offload, Prefetch
from teraio.planner.simulate import simulate
from teraio.planner.step import load_step
from teraio.profiler.errors import BadInputError, InfeasibleError, InputMissingError
from teraio.profiler.importers.g10 import read_g10
from teraio.profiler.importers.g10_files import G10Files, find_g10
from teraio.profiler.importers.lines import lines_of

BERT = Path(__file__).parent / "data" / "g10-bert-256.tar.gz"
PAGE = 4096
GUIDE = """\
Issued Time: 0 Tensor: 1 G:o From: Not_Known, To: In_gpu
Issued Time: 0 Tensor: 3 G:x From: Not_Known, To: In_gpu
Issued Time: 1 Tensor: 2 G:x From: Not_Known, To: In_ssd
Issued Time: 1 Tensor: 1 G:o From: Not_Known, To: In_cpu
Issued Time: 3 Tensor: 3 G:x From: Not_Known, To: Not_present
Issued Time: 3 Tensor: 2 G:x From: Not_Known, To: In_gpu
Issued Time: 6 Tensor: 1 G:o From: Not_Known, To: In_ssd
"""


def _evictions(guide: str) -> list[Eviction]:
    step = load_step(read_g10(run_files(TOY.g10())))
    return read_guide(lines_of("guide", guide.encode()), step)


def test_the_channels_are_those_of_the_configuration() -> None:
    files = run_files(TOY.g10())
    hardware = hardware_of(files)
    assert hardware.ssd.read_bytes_per_s == hardware.ssd.write_bytes_per_s == 3_200_000_000
    assert hardware.ssd.latency_ns == 16_000
    assert hardware.host_link.to_host_bytes_per_s == 15_754_000_000
    assert hardware.host_link.to_gpu_bytes_per_s == 15_754_000_000
    assert memory_of(files) == (40 << 30, 128 << 30)


def test_the_slower_side_is_the_link_and_host_memory_may_be_none() -> None:
    config = CONFIG.replace("CPU_PCIe_bandwidth_GBps 15.754", "CPU_PCIe_bandwidth_GBps 8")
    files = run_files(TOY.g10(), config=config.replace("CPU_memory_line_GB", "#"))
    assert hardware_of(files).host_link.to_host_bytes_per_s == 8_000_000_000
    assert memory_of(files) == (40 << 30, 0)


def test_a_run_without_configuration_or_rates_is_refused() -> None:
    with pytest.raises(InputMissingError, match="no configuration beside"):
        hardware_of(run_files(TOY.g10(), config=None))
    lacking = run_files(TOY.g10(), config="SSD_PCIe_bandwidth_GBps 3")
    with pytest.raises(BadInputError, match=r"`toy.tar.gz:toy.config` has no `GPU_PCIe_bandw"):
        hardware_of(lacking)
    with pytest.raises(BadInputError, match="has no `GPU_memory_size_GB`"):
        memory_of(lacking)


def test_evictions_have_their_interval_tier_and_prefetch() -> None:
    assert _evictions(GUIDE) == [
        Eviction(tensor=0, after_op=0, tier=HOST, issue_after=None),
        Eviction(tensor=1, after_op=0, tier=SSD, issue_after=2),
        Eviction(tensor=0, after_op=5, tier=SSD, issue_after=6),
    ]


def test_a_prefetch_of_the_next_step_may_be_at_either_end_of_it() -> None:
    late = GUIDE.replace("Issued Time: 0 Tensor: 1", "Issued Time: 0 Tensor: 7")
    assert _evictions(late)[-1].issue_after is None
    last = late + "Issued Time: 7 Tensor: 1 G:o From: Not_Known, To: In_gpu\n"
    assert _evictions(last)[-1].issue_after == 6


def test_a_fetch_before_the_eviction_is_none_of_it() -> None:
    early = "Issued Time: 1 Tensor: 2 G:x From: Not_Known, To: In_gpu\n"
    late = "Issued Time: 2 Tensor: 2 G:x From: Not_Known, To: In_ssd\n"
    assert _evictions(early + late) == [Eviction(1, 0, SSD, None)]


SSD_2 = "Issued Time: 1 Tensor: 2 G:x From: Not_Known, To: In_ssd"
BROKEN = {
    "no hint": ("Issued 1", "expected `Issued Time: 1 Tensor: 2"),
    "cut": (SSD_2[:-4], "expected `Issued Time: 1 Tensor: 2"),
    "unknown place": (SSD_2[:-3] + "moon", "expected `Issued Time: 1 Tensor: 2"),
    "unknown tensor": (SSD_2.replace("Tensor: 2", "Tensor: 6"), "tensor 6 is not in the trace"),
    "out of order": (SSD_2.replace("Time: 1", "Time: 0"), "the time is 0, not from 1 to 7"),
    "past the step": (SSD_2.replace("Time: 1", "Time: 8"), "the time is 8, not from 1 to 7"),
    "in use": (SSD_2.replace("Tensor: 2", "Tensor: 3"), "evicted where it is not idle"),
    "before it is made": (SSD_2.replace("Tensor: 2", "Tensor: 5"), "evicted where it is not idle"),
    "after its end": (SSD_2.replace("Time: 1", "Time: 5"), "evicted where it is not idle"),
    "no op inside": (SSD_2.replace("Time: 1", "Time: 3"), "evicted where it is not idle"),
    "twice": (f"{SSD_2}\n{SSD_2.replace('Time: 1', 'Time: 2')}", "evicted twice in one interval"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named_with_file_and_line(what: str) -> None:
    text, words = BROKEN[what]
    first = "Issued Time: 1 Tensor: 1 G:o From: Not_Known, To: In_gpu\n"
    with pytest.raises(BadInputError) as caught:
        _evictions(first + text)
    line = 2 + text.count("\n")
    assert str(caught.value).startswith(f"`guide`, line {line}: ")
    assert words in str(caught.value)


@pytest.fixture(scope="module")
def bert() -> G10Files:
    return find_g10(BERT)


def test_g10s_plan_for_bert_moves_the_bytes_that_g10_published(bert: G10Files) -> None:
    trace = read_g10(bert)
    step = load_step(trace)
    memory, host = memory_of(bert)
    plan = g10_plan(
        trace,
        bert,
        sha256="0" * 64,
        memory_bytes=memory,
        host_bytes=host,
        hardware=hardware_of(bert),
    )
    check_plan(step, plan)
    assert plan.policy.name == NAME
    cost = plan.prediction
    # `pcie_stat.iter1` of the run's sim_result.final counts pages.
    assert cost.ssd.to_tier_bytes == cost.ssd.to_gpu_bytes == 565_248 * PAGE
    assert cost.host.to_tier_bytes == cost.host.to_gpu_bytes == 1_769_472 * PAGE
    assert cost.peak_bytes <= 40 << 30
    assert simulate(step, plan).step_ns == cost.step_ns
    assert cost.ideal_ns <= cost.step_ns <= 8_773_229_325 * 6 // 7
    offloads = [action for action in plan.actions if isinstance(action, Offload)]
    fetches = [action for action in plan.actions if isinstance(action, Prefetch)]
    assert (len(offloads), len(fetches)) == (24, 24)


def test_prefetches_start_where_g10_issues_them(bert: G10Files) -> None:
    trace = read_g10(bert)
    step = load_step(trace)
    guide = bert.guide
    assert guide is not None
    issued = {step.tensors[e.tensor].id: e.issue_after for e in read_guide(guide, step)}
    memory, host = memory_of(bert)
    plan = g10_plan(
        trace, bert, sha256="", memory_bytes=memory, host_bytes=host, hardware=hardware_of(bert)
    )
    fetches = [action for action in plan.actions if isinstance(action, Prefetch)]
    as_issued = [a for a in fetches if a.after_op == (issued[a.tensor] or 0) % len(step.ops)]
    assert len(as_issued) == len(fetches)


def test_a_run_without_its_plan_and_a_budget_below_it_are_refused(bert: G10Files) -> None:
    trace = read_g10(bert)
    hardware = hardware_of(bert)
    with pytest.raises(InputMissingError, match=r"has no `prefetch_guide.config`"):
        g10_plan(
            trace,
            replace(bert, guide=None),
            sha256="",
            memory_bytes=40 << 30,
            host_bytes=0,
            hardware=hardware,
        )
    with pytest.raises(InfeasibleError, match="with all that the policy moves away"):
        g10_plan(
            trace, bert, sha256="", memory_bytes=30 << 30, host_bytes=1 << 37, hardware=hardware
        )
