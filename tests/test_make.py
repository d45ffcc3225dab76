import io
from dataclasses import replace

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, traces, training_trace

from teraio.planner.check import check_plan
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.make import POLICIES, make_plan
from teraio.planner.minimum import least_memory
from teraio.planner.plan import MIN_TENSOR_BYTES, Controls, Hardware, HostLink, Offload, Ssd
from teraio.planner.plan_file import read_plan, write_plan
from teraio.planner.simulate import simulate
from teraio.planner.step import idle_intervals, load_step, peak
from teraio.profiler.errors import InfeasibleError, UsageError

SHARES = st.sampled_from([0, 0.01, 0.2, 0.4, 0.7, 1])


def least_of(step):
    return least_memory(step, idle_intervals(step, MIN_TENSOR_BYTES)).nbytes


def plan_for(trace, memory_bytes, **options):
    options = {"hardware": ASSUMED, "sha256": "0" * 64, "policy": "greedy"} | options
    return make_plan(trace, memory_bytes=memory_bytes, **options)


def text_of(plan):
    sink = io.StringIO()
    write_plan(plan, sink)
    return sink.getvalue()


def test_a_step_that_fits_gets_an_empty_plan():
    trace = training_trace(3)
    step = load_step(trace)
    plan = plan_for(trace, peak(step))
    assert plan.actions == plan.tensors == ()
    assert plan.prediction.stall_ns == 0
    assert plan.prediction.peak_bytes == peak(step)
    assert plan.trace.ops == len(step.ops)
    assert plan.trace.steps == 2


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3, 0.1])
def test_a_training_step_in_less_memory(share):
    trace = training_trace(6, micro_batches=2)
    step = load_step(trace)
    plan = plan_for(trace, max(int(share * peak(step)), least_of(step)))
    assert any(isinstance(action, Offload) for action in plan.actions)
    assert plan.prediction.peak_bytes <= plan.budget.planned_bytes
    assert plan.prediction.ssd.to_gpu_bytes > 0
    assert plan.prediction.host.to_gpu_bytes == 0


def test_with_fast_channels_there_is_no_stall():
    trace = training_trace(6)
    fast = with_rates(ASSUMED, ssd_read=10**12, ssd_write=10**12)
    fast = replace(fast, ssd=replace(fast.ssd, latency_ns=0))
    plan = plan_for(trace, peak(load_step(trace)) // 2, hardware=fast)
    assert plan.prediction.stall_ns == 0


def test_host_memory_serves_where_the_ssd_is_too_slow():
    trace = training_trace(6)
    memory = peak(load_step(trace)) // 2
    slow = with_rates(ASSUMED, ssd_read=10**9, ssd_write=10**9)
    alone = plan_for(trace, memory, hardware=slow)
    both = plan_for(trace, memory, hardware=slow, host_bytes=1 << 30)
    assert both.prediction.host.to_gpu_bytes > 0
    assert both.prediction.step_ns < alone.prediction.step_ns


def test_an_unwritten_parameter_is_dropped_not_written():
    trace = make_trace(6, [T(1, 4 * MIB, "0r 5r"), T(2, 4 * MIB, "2w 3r", alloc=2, free=3)])
    plan = plan_for(trace, 4 * MIB)
    assert [a.write for a in plan.actions if isinstance(a, Offload)] == [False]
    assert plan.prediction.ssd.to_tier_bytes == 0
    assert plan.prediction.ssd.dropped_bytes == 4 * MIB


def test_only_the_first_interval_after_a_write_writes():
    used = T(1, 4 * MIB, "0w 5r 10r", alloc=0, free=10)
    others = [T(i, 4 * MIB, f"{i}w", alloc=i, free=i) for i in (3, 8)]
    plan = plan_for(make_trace(11, [used, *others], durations=5_000_000), 4 * MIB)
    assert [a.write for a in plan.actions if isinstance(a, Offload)] == [True, False]


def test_below_the_least_the_error_says_what_is_possible():
    trace = make_trace(
        6,
        [
            T(1, 4 * MIB, "0r 5r", kind="parameter", name="embed.weight"),
            T(2, 3 * MIB, "2w 3r", alloc=2, free=3),
            *(T(10 + i, MIB - 512, "2r", kind="buffer") for i in range(6)),
        ],
        workspace={2: 5 * MIB},
    )
    with pytest.raises(InfeasibleError) as caught:
        plan_for(trace, 8 * MIB)
    message = str(caught.value)
    least = least_of(load_step(trace))
    assert f"{8 * MIB} bytes (8.00 MiB)" in message
    assert f"{least} bytes (14.00 MiB)" in message
    assert "op 2, `aten.op2` in `layers.2`" in message
    assert "3.00 MiB activation tensor 2" in message
    assert "5.00 MiB workspace" in message
    assert "in 2 smaller tensors" in message
    assert "embed.weight" not in message
    assert "idle" not in message
    assert f"--memory {least}" in caught.value.hint
    assert plan_for(trace, least).prediction.peak_bytes <= least
    assert plan_for(trace, 8 * MIB, or_minimum=True).budget.memory_bytes == least


def test_the_error_says_what_the_least_tensor_size_costs():
    small = [T(k, MIB // 2, "0r 5r") for k in range(4)]
    trace = make_trace(6, [*small, T(9, 4 * MIB, "2w 3r", alloc=2, free=3)])
    with pytest.raises(InfeasibleError, match=r"2\.00 MiB of it is idle .* under 1\.00 MiB"):
        plan_for(trace, 5 * MIB)
    assert plan_for(trace, 5 * MIB, controls=Controls(min_tensor_bytes=MIB // 2)).actions


@pytest.mark.parametrize("margin", [0.05, 0.37, 0.99])
def test_the_least_possible_memory_includes_the_margin(margin):
    trace = training_trace(4)
    plan = plan_for(trace, 1, margin=margin, or_minimum=True)
    assert plan.budget.planned_bytes >= least_of(load_step(trace))
    with pytest.raises(InfeasibleError, match="margin"):
        plan_for(trace, plan.budget.memory_bytes - 512, margin=margin)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "magic"}, "unknown policy"),
        ({"margin": 1.0}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"host_bytes": -1}, "host memory"),
        ({"time_limit_s": 0}, "time limit"),
        ({"time_limit_s": float("nan")}, "time limit"),
        ({"time_limit_s": float("inf")}, "time limit"),
        ({"controls": Controls(ssd_write_bytes=-1)}, "write to the SSD must not be negative"),
        ({"controls": Controls(min_tensor_bytes=-1)}, "must not be negative"),
        ({"controls": Controls(tiers=("tape",))}, "no tier `tape`"),
        ({"controls": Controls(tiers=())}, "host memory only, and there is none"),
        ({"controls": Controls(tiers=("host",))}, "host memory only, and there is none"),
        ({"controls": Controls(keep=("(",))}, "not a regular expression"),
        ({"controls": Controls(never_ssd=("[",))}, "not a regular expression"),
    ],
)
def test_arguments_that_are_refused(options, words):
    with pytest.raises(UsageError, match=words) as caught:
        plan_for(training_trace(2), 1 << 30, **options)
    assert caught.value.hint


def test_an_unknown_policy_names_the_known():
    with pytest.raises(UsageError) as caught:
        plan_for(training_trace(2), 1 << 30, policy="magic")
    assert all(name in caught.value.hint for name in ("auto", *POLICIES))


def test_auto_is_recorded_as_the_policy_it_stands_for():
    trace = training_trace(4)
    plan = plan_for(trace, int(0.8 * peak(load_step(trace))), policy="auto")
    assert plan.policy.name in POLICIES


def test_a_trace_without_signatures_can_be_planned():
    trace = make_trace(3, [T(1, MIB, "0r")], signatures=False)
    plan = plan_for(trace, 8 * MIB)
    assert plan.trace.program.signature == ()
    assert plan.trace.program.op_name(2) == "aten.op2"
    assert read_plan(io.StringIO(text_of(plan))).trace == plan.trace


def test_the_program_of_the_plan():
    trace = make_trace(3, [T(1, 513, "1w", alloc=1)], workspace={2: 1})
    program = plan_for(trace, 8 * MIB).trace.program
    assert program.new_granules == (0, 2, 0)
    assert program.workspace_granules == (0, 0, 1)
    assert program.signature == (0, 1, 2)


@examples(25)
@given(traces(), hardware(), SHARES, st.sampled_from([0, 0, 4 * MIB, 64 * MIB]))
def test_any_budget_from_the_least_up_gets_a_right_plan(trace, channels, share, host_bytes):
    step = load_step(trace)
    least = least_of(step)
    memory = least + int(share * (peak(step) - least))
    options = {"hardware": channels, "host_bytes": host_bytes, "policy": "auto"}
    plan = plan_for(trace, max(memory, 1), **options)
    check_plan(step, plan)
    simulated = simulate(step, plan)
    assert simulated.peak_bytes <= plan.prediction.peak_bytes <= max(memory, 1)
    assert simulated.step_ns == plan.prediction.step_ns >= plan.prediction.lower_bound_ns
    assert text_of(plan) == text_of(plan_for(trace, max(memory, 1), **options))
    if least > 1:
        with pytest.raises(InfeasibleError):
            plan_for(trace, least - 1, **options)


@examples(30)
@given(traces(), hardware(), SHARES)
def test_an_offload_after_a_write_always_writes(trace, channels, share):
    step = load_step(trace)
    least = least_of(step)
    plan = plan_for(trace, max(1, least + int(share * (peak(step) - least))), hardware=channels)
    tensors = {tensor.id: tensor for tensor in step.tensors}
    for action in plan.actions:
        if isinstance(action, Offload):
            uses = {use.op: use for use in tensors[action.tensor].uses}
            last = uses.get(action.after_op)
            assert action.write or last is None or not last.writes


@pytest.mark.parametrize(
    ("channels", "words"),
    [
        (Hardware(Ssd(10**9, 10**9, 0), HostLink(1, 1), {}), "at 1 bytes per second"),
        (Hardware(Ssd(10**9, 10**9, 2**62), HostLink(10**9, 10**9), {}), "transfers that wait"),
    ],
)
def test_times_that_cannot_be_counted_are_refused(channels, words):
    tensors = [T(1, 1 << 34, "0rw 3r"), T(2, 1 << 33, "1w 2r", alloc=1, free=2)]
    trace = make_trace(4, tensors)
    with pytest.raises(UsageError, match=words) as caught:
        plan_for(trace, 1 << 34, hardware=channels)
    assert caught.value.hint
