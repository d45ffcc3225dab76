"""A policy's problem from a synthetic trace, and what an answer moves."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import strategies as st
from traces import MIB, hardware, traces

from teraio.planner import make
from teraio.planner.hardware import ASSUMED
from teraio.planner.minimum import least_memory
from teraio.planner.plan import (
    MIN_TENSOR_BYTES,
    Controls,
    Hardware,
    HostLink,
    Offload,
    Prefetch,
    Ssd,
)
from teraio.planner.problem import Problem
from teraio.planner.step import idle_intervals, load_step, peak

FAST = Hardware(Ssd(10**12, 10**12, 0), HostLink(10**12, 10**12), {})


def problem_of(trace, memory_bytes, host_bytes=0, hardware=ASSUMED, **options):
    step = load_step(trace)
    intervals = tuple(idle_intervals(step, MIN_TENSOR_BYTES))
    return Problem(step, intervals, memory_bytes, host_bytes, hardware, **options)


def checked_plan(trace, policy, share, *, hardware=ASSUMED, host_bytes=0, controls=None):
    """Return the plan of a policy, a name or a function, that the checker has accepted.

    The budget is that share of the way from the least that is possible to the peak. The lower
    bound, which takes longer than most policies and has tests of its own, is left out.
    """
    step = load_step(trace)
    least = least_memory(step, idle_intervals(step, MIN_TENSOR_BYTES)).nbytes
    named = isinstance(policy, str)
    with patch.object(make, "lower_bound_ns", lambda problem, **_: problem.step.period_ns):
        return make.make_plan(
            trace,
            sha256="0" * 64,
            memory_bytes=max(1, least + int(share * (peak(step) - least))),
            host_bytes=host_bytes,
            hardware=hardware,
            policy=policy if named else "test",
            answering=None if named else policy,
            controls=controls or Controls(),
        )


def offloads(answer):
    return [action for action in answer.actions if isinstance(action, Offload)]


def prefetches(answer):
    return [action for action in answer.actions if isinstance(action, Prefetch)]


def tiers(answer):
    """Return the tier that each moved tensor goes to."""
    return {action.tensor: action.to for action in offloads(answer)}


@st.composite
def problems(draw, host=(0, 8 * MIB, 1 << 40)):
    """Small problems with a budget from the least possible to the peak."""
    step = load_step(draw(traces()))
    intervals = tuple(idle_intervals(step, draw(st.sampled_from([0, 4 * MIB]))))
    least = least_memory(step, intervals).nbytes
    memory = least + int(draw(st.floats(0, 1)) * (peak(step) - least))
    host_bytes = draw(st.sampled_from(host))
    ssd = not host_bytes or draw(st.booleans())
    never = draw(st.sets(st.integers(0, len(step.tensors) - 1), max_size=2)) if host_bytes else ()
    return Problem(
        step, intervals, memory, host_bytes, draw(hardware()), ssd=ssd, never_ssd=frozenset(never)
    )
