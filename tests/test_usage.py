from dataclasses import asdict
from functools import cache

from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, training_trace

from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan import Hardware, HostLink, Offload, Prefetch, Ssd, Traffic
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import load_step
from teraio.planner.usage import bin_edges, channel_use, memory_use, traffic

MS = 1_000_000
SIMPLE = Hardware(Ssd(10**9, 10**9, 0), HostLink(10**9, 10**9), {})


def six_ops():
    """Tensor 1, of 2 MB, is away during ops 2 to 3 of six ops of 1 ms; 5 MB work in op 2."""
    tensors = [T(1, 2 * MS, "0w 5r", alloc=0, free=5)]
    step = load_step(make_trace(6, tensors, durations=MS, workspace={2: 5 * MS}))
    actions = [Offload(1, "ssd", 0, 3, write=True), Prefetch(1, "ssd", 3, 5)]
    return step, simulate_actions(step, SIMPLE, actions)


def test_channel_use_by_hand():
    _, simulation = six_ops()
    # Written after op 0, for 2 ms; read after op 3, while op 4 runs and op 5 waits for 1 ms.
    assert simulation.step_ns == 7 * MS
    assert channel_use(simulation, 7) == {
        "gpu to ssd": [0, MS, MS, 0, 0, 0, 0],
        "ssd to gpu": [0, 0, 0, 0, MS, MS, 0],
    }
    assert channel_use(simulation, 2) == {"gpu to ssd": [2 * MS, 0], "ssd to gpu": [0, 2 * MS]}


def test_memory_by_hand():
    step, simulation = six_ops()
    size = step.tensors[0].size
    work = step.ops[2].workspace_bytes
    # Op 5 waits in the sixth part, which has what op 4 needs: the tensor on its way back.
    assert memory_use(step, simulation, 7) == [size, size, size + work, 0, size, size, size]
    assert memory_use(step, simulation, 1) == [size + work]


def test_what_crosses_the_end_of_the_step_is_folded_back():
    step = load_step(make_trace(4, [T(1, 2 * MS, "0rw 2r")], durations=MS))
    actions = [Prefetch(1, "ssd", 0, 2), Offload(1, "ssd", 2, 0, write=True)]
    simulation = simulate_actions(step, SIMPLE, actions)
    # Op 2 waits 1 ms for the prefetch, and op 0 1 ms for the offload that op 3 began with.
    assert channel_use(simulation, 6)["gpu to ssd"] == [MS, 0, 0, 0, 0, MS]


def test_a_step_that_moves_nothing():
    step = load_step(make_trace(3, [T(1, MIB, "0r")], durations=MS))
    simulation = simulate_actions(step, SIMPLE, [])
    assert channel_use(simulation) == {}
    assert memory_use(step, simulation, 4) == [MIB] * 4
    assert traffic(step, []) == dict.fromkeys(("ssd", "host"), Traffic(0, 0, 0))


def test_edges_are_as_equal_as_whole_ns_allow():
    simulation = simulate_actions(load_step(make_trace(1, [T(1, 1)], durations=10)), SIMPLE, [])
    assert bin_edges(simulation, 4) == [0, 2, 5, 7, 10]


@cache
def planned(mib, host_mib):
    trace = training_trace(4, micro_batches=2)
    return load_step(trace), make_plan(
        trace, sha256="", memory_bytes=mib * MIB, host_bytes=host_mib * MIB, hardware=ASSUMED,
        or_minimum=True, policy="greedy",
    )  # fmt: skip


@examples(40)
@given(hardware(), st.sampled_from([13, 20]), st.sampled_from([0, 30]), st.integers(1, 90))
def test_sums(channels, mib, host_mib, bins):
    step, plan = planned(mib, host_mib)
    simulation = simulate_actions(step, channels, plan.actions)
    for name, use in channel_use(simulation, bins).items():
        assert sum(use) == simulation.busy_ns[name]
        assert min(use) >= 0
        widths = bin_edges(simulation, bins)
        if simulation.steady:
            assert all(u <= b - a for u, a, b in zip(use, widths, widths[1:], strict=False))
    assert max(memory_use(step, simulation, bins)) == simulation.peak_bytes
    told = {"ssd": plan.prediction.ssd, "host": plan.prediction.host}
    assert {tier: asdict(own) for tier, own in traffic(step, plan.actions).items()} == {
        tier: asdict(own) for tier, own in told.items()
    }


def test_busy_time_is_what_the_bytes_take():
    step, plan = planned(20, 0)
    reads = sum(isinstance(action, Prefetch) for action in plan.actions)
    each_ns = 20_000 - (-4 * MIB * 10**9 // ASSUMED.ssd.read_bytes_per_s)
    busy = simulate_actions(step, ASSUMED, plan.actions).busy_ns
    assert busy["ssd to gpu"] == reads * each_ns > 0
