"""What the replay does takes as long as the simulator says, and nothing that is not planned."""

from __future__ import annotations

from pathlib import Path

import pytest
from ghosts import Ghosts

from teraio.planner.feedback import beside
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.make import make_plan
from teraio.planner.plan import Controls, Plan
from teraio.planner.step import Step, load_step, peak
from teraio.profiler.trace import read_trace

TRACES = Path(__file__).parent.parent / "sample_traces"
RATE = 2_000_000_000


@pytest.fixture(scope="module")
def step() -> Step:
    return load_step(read_trace(TRACES / "llama.parquet"))


def plan_for(share: float, tier: str, rate: int, margin: float = 0.0) -> Plan:
    trace = read_trace(TRACES / "llama.parquet")
    hardware = with_rates(ASSUMED, ssd_read=rate, ssd_write=rate, host_link=rate)
    return make_plan(
        trace,
        sha256="0" * 64,
        memory_bytes=int(peak(load_step(trace)) * share),
        hardware=hardware,
        host_bytes=(1 << 40) * (tier == "host"),
        policy="greedy",
        bound_ns=1,
        or_minimum=True,
        margin=margin,
        controls=Controls(tiers=(tier,)),
    )


@pytest.mark.parametrize("runs_ahead", [False, True], ids=["", "runs ahead"])
@pytest.mark.parametrize("rate", [RATE // 20, RATE], ids=["waits", "in time"])
@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_steady_step_is_as_predicted(
    step: Step, share: float, rate: int, runs_ahead: bool
) -> None:
    plan = plan_for(share, "host", rate, margin=0.01)
    waits = plan.prediction.step_ns > plan.prediction.ideal_ns
    assert waits == (rate < RATE), "else this test is not about what its name says"
    run = Ghosts(step, plan, runs_ahead=runs_ahead).steps(6)
    assert run.divergences == []
    assert run.counters.over_budget_ops == 0
    assert run.unplanned[3:] == [0, 0, 0]
    for step_ns in run.step_ns[3:]:
        assert step_ns == pytest.approx(plan.prediction.step_ns, rel=0.02)
    measured = [*beside(run.counters.speeds.rates(), plan.hardware)]
    assert len(measured) == 2, "each way"
    assert all(way.measured == pytest.approx(way.planned, rel=0.001) for way in measured)
