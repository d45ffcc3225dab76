"""Trace events of a step, alone and under a plan."""

from __future__ import annotations

import json
from typing import Any

from example_counts import examples
from hypothesis import given
from traces import MIB, hardware, traces, training_trace

from teraio.planner.make import make_plan
from teraio.planner.minimum import least_memory
from teraio.planner.perfetto import trace_events
from teraio.planner.plan import SSD, Hardware, HostLink, Offload, Plan, Ssd
from teraio.planner.problem import Answer, Problem
from teraio.planner.simulate import simulate
from teraio.planner.step import Step, idle_intervals, load_step, peak
from teraio.planner.tiers import Chosen
from teraio.planner.windows import fit_windows
from teraio.profiler.trace import Trace

SLOW = Hardware(Ssd(10**9, 10**9, 0), HostLink(10**9, 10**9), {"ssd": "given"})


def _ns(us: float) -> int:
    return round(us * 1000)


def _of(events: list[dict[str, Any]], phase: str, name: str = "") -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase and name in event["name"]]


def _plan(trace: Trace, nbytes: int, hardware: Hardware = SLOW) -> Plan:
    """Return a plan that moves whatever lies idle, however much it costs."""

    def everything(problem: Problem) -> Answer:
        chosen = [Chosen(index, SSD) for index in range(len(problem.intervals))]
        return Answer(fit_windows(problem, chosen))

    return make_plan(
        trace,
        sha256="0" * 64,
        memory_bytes=nbytes,
        hardware=hardware,
        or_minimum=True,
        policy="everything",
        answering=everything,
    )


def _ops(step: Step, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ops = [event for event in events if event["ph"] == "X" and "op" in event["args"]]
    assert [event["args"]["op"] for event in ops] == list(range(len(step.ops)))
    assert [_ns(event["dur"]) for event in ops] == [op.duration_ns for op in step.ops]
    return ops


def test_a_step_alone() -> None:
    step = load_step(training_trace(3))
    events = list(trace_events(step))
    ops = _ops(step, events)
    assert [_ns(event["ts"]) for event in ops] == [op.start_ns for op in step.ops]
    assert {event["cat"] for event in ops} == {op.phase for op in step.ops}
    counted = [event["args"]["bytes"] for event in _of(events, "C")]
    assert counted == step.demand.tolist()
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert json.loads(json.dumps(events)) == events


def test_a_plan_shows_waits_moves_and_memory() -> None:
    trace = training_trace(6)
    step = load_step(trace)
    plan = _plan(trace, peak(step) * 6 // 10)
    events = list(trace_events(step, plan))
    simulation = simulate(step, plan)
    assert simulation.stall_ns
    waits = [(int(e["name"].split()[1]), _ns(e["dur"])) for e in _of(events, "X", "waits")]
    assert waits == list(simulation.waits)
    ops = _ops(step, events)
    for wait, (op, _) in zip(_of(events, "X", "waits"), waits, strict=True):
        assert _ns(wait["ts"]) + _ns(wait["dur"]) == _ns(ops[op]["ts"])
    begins, ends = _of(events, "b"), _of(events, "e")
    assert len(begins) == len(ends) == len(plan.actions)
    assert len({event["id"] for event in begins}) == len(begins)
    period = _ns(ops[-1]["ts"]) + step.ops[-1].duration_ns
    for action, begin, end in zip(plan.actions, begins, ends, strict=True):
        until = action.gone_by_op if isinstance(action, Offload) else action.needed_by_op
        done = _ns(ops[action.after_op]["ts"]) + step.ops[action.after_op].duration_ns
        later = period if until <= action.after_op else 0
        assert (_ns(begin["ts"]), _ns(end["ts"])) == (done, _ns(ops[until]["ts"]) + later)
        assert begin["id"] == end["id"]
    names = {tensor.id: tensor.name for tensor in step.tensors}
    labels = [f"{names[a.tensor] or f'tensor {a.tensor}'}, 4.00 MiB" for a in plan.actions]
    assert [event["name"] for event in begins] == labels


@given(traces(), hardware())
@examples(25)
def test_memory_with_a_plan_is_within_its_budget(trace: Trace, hardware: Hardware) -> None:
    step = load_step(trace)
    least = least_memory(step, idle_intervals(step, MIB)).nbytes
    plan = _plan(trace, max(1, (least + peak(step)) // 2), hardware)
    events = list(trace_events(step, plan))
    counted = [event["args"]["bytes"] for event in _of(events, "C", "with the plan")]
    assert max(counted) == plan.prediction.peak_bytes
    assert all(
        _ns(b["ts"]) <= _ns(e["ts"])
        for b, e in zip(_of(events, "b"), _of(events, "e"), strict=True)
    )
