from dataclasses import astuple, replace
from functools import cache

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, training_trace

from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan import Hardware, HostLink, Offload, Prefetch, Ssd
from teraio.planner.simulate import Stall, simulate, simulate_actions
from teraio.planner.step import load_step, peak

MS = 1_000_000
NBYTES = 1_000_000
"""Bytes: one millisecond at the rates below."""
SIMPLE = Hardware(Ssd(10**9, 10**9, 0), HostLink(10**9, 10**9), {})


def step_of(n_ops, tensors, **options):
    return load_step(make_trace(n_ops, tensors, durations=MS, **options))


def moved(tensor, after, gone, back, needed, *, write=True, tier="ssd"):
    return (
        Offload(tensor, tier, after, gone, write),
        Prefetch(tensor, tier, back, needed),
    )


def run(step, *actions, channels=SIMPLE):
    return simulate_actions(step, channels, sorted(actions, key=lambda a: a.after_op))


def test_without_actions_a_step_is_ideal():
    step = step_of(3, [T(1, NBYTES, "0r")], gaps=[0, 0, 500])
    simulation = run(step)
    assert simulation.step_ns == simulation.ideal_ns == 3 * MS + 500
    assert simulation.stall_ns == 0
    assert simulation.peak_bytes == peak(step)
    assert simulation.steady
    assert simulation.waits == ()


def test_transfers_that_fit_cost_nothing():
    step = step_of(6, [T(1, NBYTES, "0w 5r", alloc=0, free=5)])
    simulation = run(step, *moved(1, 0, 2, 3, 5))
    assert simulation.stall_ns == 0
    assert simulation.busy_ns == {"gpu to ssd": MS, "ssd to gpu": MS}


def test_a_late_prefetch_makes_its_op_wait():
    step = step_of(6, [T(1, 3 * NBYTES, "0w 5r", alloc=0, free=5)])
    simulation = run(step, *moved(1, 0, 4, 4, 5))
    assert simulation.stall.late_prefetch_ns == 3 * MS
    assert simulation.stall.memory_ns == 0
    assert simulation.waits == ((5, 3 * MS),)
    assert simulation.stall.bandwidth_ns == 0
    assert simulation.step_ns == 9 * MS


def test_an_op_waits_for_memory_that_an_offload_frees():
    step = step_of(6, [T(1, 2 * NBYTES, "0w 5r", alloc=0, free=5)])
    simulation = run(step, *moved(1, 0, 2, 2, 5))
    assert simulation.stall.memory_ns == MS
    assert simulation.stall.late_prefetch_ns == 0


def test_a_drop_is_free_and_leaves_at_once():
    step = step_of(6, [T(1, 5 * NBYTES, "0r 5r")])
    simulation = run(step, *moved(1, 0, 1, 4, 5, write=False))
    assert simulation.busy_ns == {"ssd to gpu": 5 * MS}
    assert simulation.stall_ns == 5 * MS


def test_the_latency_counts_for_each_transfer():
    step = step_of(6, [T(1, NBYTES, "0w 5r", alloc=0, free=5)])
    slow = replace(SIMPLE, ssd=replace(SIMPLE.ssd, latency_ns=500))
    assert run(step, *moved(1, 0, 2, 2, 5), channels=slow).stall.memory_ns == 500


def test_a_channel_serves_in_order_and_the_one_that_is_waited_for_first():
    tensors = [T(k, 2 * NBYTES, f"0r {op}r") for k, op in ((1, 9), (2, 8), (3, 6))]
    step = step_of(10, tensors)
    actions = [
        *moved(1, 0, 1, 3, 9, write=False),
        *moved(2, 0, 1, 3, 8, write=False),
        *moved(3, 0, 1, 4, 6, write=False),
    ]
    simulation = run(step, *actions)
    # Tensor 1 is read in ops 4 and 5; tensor 3 overtakes tensor 2, for op 6 waits for it. Alone
    # it would have been there 1 ms after op 5; the other ms it queued behind tensor 1.
    assert simulation.waits == ((6, 2 * MS),)
    assert simulation.stall == Stall(late_prefetch_ns=MS, bandwidth_ns=MS, memory_ns=0)


def test_a_prefetch_waits_for_the_memory_of_an_offload_due_at_the_same_op():
    step = step_of(8, [T(1, 4 * NBYTES, "0w 7r", alloc=0), T(2, NBYTES, "0r 4r")])
    actions = [*moved(1, 0, 3, 5, 7), *moved(2, 0, 1, 2, 4, write=False)]
    simulation = run(step, *actions)
    # Op 3 waits 2 ms for the offload; only then does the prefetch for op 4 start.
    assert simulation.waits == ((3, 2 * MS), (7, 3 * MS))


def test_channels_do_not_wait_for_each_other():
    step = step_of(6, [T(1, NBYTES, "0r 5r"), T(2, NBYTES, "0r 5r")])
    both = [
        *moved(1, 0, 1, 3, 5, write=False),
        *moved(2, 0, 1, 3, 5, write=False, tier="host"),
    ]
    wide = replace(SIMPLE, host_link=HostLink(2 * 10**9, 2 * 10**9))
    assert run(step, *both, channels=wide).stall_ns == 0
    # On a link that is no faster than the SSD alone each has half of it, and needs 2 ms.
    assert run(step, *both).stall == Stall(late_prefetch_ns=0, bandwidth_ns=MS, memory_ns=0)


def test_a_window_that_wraps_into_the_next_step():
    step = step_of(6, [T(1, 2 * NBYTES, "1r 3rw")])
    simulation = run(step, *moved(1, 3, 0, 0, 1))
    # The prefetch starts when op 0 ends and op 1 waits for it; the offload had ops 4 and 5.
    assert simulation.stall.late_prefetch_ns == 2 * MS
    assert simulation.stall.memory_ns == 0
    assert simulation.steady


def test_a_channel_with_too_much_to_do_sets_the_step():
    step = step_of(10, [T(k, 4 * NBYTES, "0w 9r", alloc=0, free=9) for k in (1, 2, 3)])
    simulation = run(step, *(a for k in (1, 2, 3) for a in moved(k, 0, 8, 8, 9)))
    assert max(simulation.busy_ns.values()) == 12 * MS
    assert simulation.step_ns >= 12 * MS


def test_the_peak_counts_a_tensor_until_it_is_gone():
    inner = T(9, 512, "2w", alloc=2, free=2)
    step = step_of(6, [T(1, 1024, "0w 5r", alloc=0, free=5), inner])
    slow = replace(SIMPLE, ssd=Ssd(10**9, 10**6, 0))
    assert run(step, *moved(1, 0, 3, 4, 5)).peak_bytes == 1024
    assert run(step, *moved(1, 0, 3, 4, 5), channels=slow).peak_bytes == 1536


def test_a_backlog_that_grows_by_little_is_followed_to_its_end():
    tensors = [T(1, 6_001_000, "0w 11r", alloc=0), T(2, 6_001_000, "6rw")]
    step = step_of(12, tensors)
    fast = Hardware(Ssd(10**13, 10**9, 0), HostLink(10**13, 10**13), {})
    simulation = run(step, *moved(1, 0, 8, 9, 11), *moved(2, 6, 3, 4, 6), channels=fast)
    # Each step writes for 2 us longer than it lasts, until op 3 or 8 waits for these 2 us: after
    # about 1 ms of slack, or 500 steps, of which nearly all are skipped.
    assert simulation.steady
    assert simulation.steps < 10
    assert simulation.stall == Stall(late_prefetch_ns=0, bandwidth_ns=0, memory_ns=2_000)


def test_a_plan_for_a_training_step_settles():
    trace = training_trace(4)
    step = load_step(trace)
    plan = make_plan(trace, sha256="", memory_bytes=peak(step) // 2, hardware=ASSUMED)
    simulation = simulate(step, plan)
    assert simulation.steady
    assert simulation.step_ns == plan.prediction.step_ns


@cache
def planned(share, micro_batches):
    trace = training_trace(4, micro_batches=micro_batches)
    step = load_step(trace)
    return step, make_plan(
        trace,
        sha256="",
        memory_bytes=max(int(share * peak(step)), 13 * MIB),
        hardware=ASSUMED,
        host_bytes=30 * MIB,
        or_minimum=True,
        policy="greedy",
    )


@examples(30)
@given(hardware(), st.sampled_from([0.2, 0.5]), st.sampled_from([1, 3]))
def test_a_step_is_never_shorter_than_what_it_must_do(channels, share, micro_batches):
    step, plan = planned(share, micro_batches)
    simulation = simulate_actions(step, channels, plan.actions)
    assert simulation.step_ns >= max(step.period_ns, *simulation.busy_ns.values())
    assert sum(astuple(simulation.stall)) == simulation.stall_ns
    assert min(astuple(simulation.stall)) >= 0
    assert sum(ns for _, ns in simulation.waits) <= simulation.stall_ns
    assert simulation.peak_bytes <= plan.budget.planned_bytes
    for rate, tiers in (
        (channels.host_link.to_gpu_bytes_per_s, (plan.prediction.ssd, plan.prediction.host)),
        (channels.ssd.read_bytes_per_s, (plan.prediction.ssd,)),
    ):
        assert simulation.step_ns * rate >= sum(own.to_gpu_bytes for own in tiers) * 10**9


def test_a_faster_channel_never_stalls_longer_on_one_transfer():
    step = step_of(6, [T(1, 3 * NBYTES, "0w 5r", alloc=0, free=5)])
    link = HostLink(10**11, 10**11)
    stalls = [
        run(step, *moved(1, 0, 2, 3, 5), channels=Hardware(Ssd(rate, rate, 0), link, {})).stall_ns
        for rate in (10**8, 10**9, 10**10)
    ]
    assert stalls == sorted(stalls, reverse=True)
    assert stalls[0] > stalls[2] == 0


@pytest.mark.parametrize("tier", ["ssd", "host"])
def test_channel_names(tier):
    step = step_of(6, [T(1, NBYTES, "0w 5r", alloc=0, free=5)])
    names = set(run(step, *moved(1, 0, 2, 3, 5, tier=tier)).busy_ns)
    assert names == {f"gpu to {tier}", f"{tier} to gpu"}


def test_a_transfer_under_way_is_not_interrupted():
    # Op 2 needs tensor 3. At 1.00 GB/s tensor 1 is under way when op 2 begins to wait, so tensor
    # 3 is next. At 1.05 GB/s tensor 1 is done a little earlier and tensor 2 has begun, which
    # takes 10 ms that op 2 waits for: more bandwidth, and a longer step.
    tensors = [T(1, 2 * NBYTES, "0r 3r"), T(2, 10 * NBYTES, "0r 3r"), T(3, NBYTES, "0r 2r")]
    step = load_step(make_trace(4, tensors, durations=[MS, 2 * MS, 12 * MS, MS]))
    link = HostLink(10**11, 10**11)
    prefetches = [Prefetch(1, "ssd", 0, 3), Prefetch(2, "ssd", 0, 3), Prefetch(3, "ssd", 0, 2)]
    slow, fast = (
        run(step, *prefetches, channels=Hardware(Ssd(rate, rate, 0), link, {}))
        for rate in (10**9, 1_050_000_000)
    )
    assert slow.step_ns == 17 * MS
    assert fast.step_ns == 16 * MS + -(-2 * MS * 100 // 105) + -(-10 * MS * 100 // 105) + (
        -(-MS * 100 // 105) - 2 * MS
    )


@st.composite
def in_order(draw):
    """Transfers in whose channels the first to start is the first to be needed."""
    n_ops = draw(st.integers(4, 12))
    durations = draw(st.lists(st.integers(1, 3 * MS), min_size=n_ops, max_size=n_ops))
    afters = sorted(draw(st.lists(st.integers(0, n_ops - 1), min_size=1, max_size=6)))
    windows = draw(st.tuples(st.integers(1, n_ops // 3), st.integers(1, n_ops // 3)))
    late = draw(st.integers(0, n_ops - sum(windows)))
    sizes = st.integers(1, 5 * NBYTES)
    tensors = [T(k, draw(sizes), f"{after}rw") for k, after in enumerate(afters)]
    actions = []
    for k, after in enumerate(afters):
        gone = after + windows[0]
        back = gone + late
        needed = back + windows[1]
        actions += moved(k, after, gone % n_ops, back % n_ops, needed % n_ops)
    return load_step(make_trace(n_ops, tensors, durations=durations)), actions


RATES = st.sampled_from([10**8, 5 * 10**8, 10**9, 1_100_000_000, 3 * 10**9, 10**10])


@examples(40)
@given(in_order(), RATES, RATES)
def test_more_bandwidth_never_costs_time_if_transfers_start_in_the_order_of_need(
    case, one_rate, another_rate
):
    step, actions = case
    link = HostLink(10**11, 10**11)
    slow, fast = (
        run(step, *actions, channels=Hardware(Ssd(rate, rate, 0), link, {}))
        for rate in sorted((one_rate, another_rate))
    )
    assert fast.step_ns <= slow.step_ns


@examples(25)
@given(in_order(), st.sampled_from(["ssd", "host"]))
def test_on_channels_of_any_speed_nothing_queues(case, tier):
    step, actions = case
    instant = Hardware(Ssd(10**30, 10**30, 0), HostLink(10**30, 10**30), {})
    actions = [
        replace(action, **{"to" if isinstance(action, Offload) else "source": tier})
        for action in actions
    ]
    stall = run(step, *actions, channels=instant).stall
    # A transfer still takes 1 ns, as times are whole: behind n others it waits n ns.
    assert stall.bandwidth_ns + stall.memory_ns <= len(actions) ** 2
