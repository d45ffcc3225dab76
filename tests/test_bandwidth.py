import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from teraio.planner.bandwidth import Channel, add_cyclic, transfer_ns
from teraio.planner.hardware import ASSUMED
from teraio.planner.plan import Hardware, HostLink, Ssd

SLOTS = st.lists(st.integers(0, 50), min_size=2, max_size=200)


def channel(slots):
    return Channel(np.array(slots, dtype=np.int64))


def test_transfer_times_round_up_and_the_ssd_has_a_latency():
    hardware = Hardware(Ssd(3, 2, 7), HostLink(10**9, 2 * 10**9), {})
    assert transfer_ns(hardware, "ssd", 1, to_gpu=True) == 7 + 333_333_334
    assert transfer_ns(hardware, "ssd", 1, to_gpu=False) == 7 + 500_000_000
    assert transfer_ns(hardware, "host", 5, to_gpu=False) == 5
    assert transfer_ns(hardware, "host", 5, to_gpu=True) == 3
    assert transfer_ns(ASSUMED, "ssd", 6_700_000_000, to_gpu=True) == 10**9 + 20_000


def test_finish_and_start_find_the_nearest_free_time():
    free = channel([10, 10, 10, 10])
    assert free.finish(1, 4, 10) == 1
    assert free.finish(1, 4, 11) == 2
    assert free.finish(1, 4, 31) is None
    assert free.start(0, 4, 10) == 3
    assert free.start(0, 4, 11) == 2
    assert free.start(2, 4, 21) is None
    assert free.finish(3, 6, 25) == 5
    assert free.start(3, 6, 25) == 3
    assert free.finish(2, 2, 1) is None


def test_taken_time_is_gone_in_every_step_until_it_is_given_back():
    free = channel([10, 10, 10, 10])
    taken = free.take_early(3, 6, 25)
    assert taken.total_ns == 25
    assert [free.free_ns(k, k + 1) for k in range(8)] == [0, 5, 10, 0] * 2
    late = free.take_late(1, 3, 12)
    assert [free.free_ns(k, k + 1) for k in range(4)] == [0, 3, 0, 0]
    free.give_back(taken)
    free.give_back(late)
    assert free.free_ns(0, 8) == 80


def test_no_more_is_taken_than_there_is():
    free = channel([1, 2])
    assert free.take_early(0, 2, 100).total_ns == 3
    assert free.take_late(0, 2, 100).total_ns == 0
    assert free.take_early(1, 1, 5).total_ns == 0


@given(SLOTS, st.data())
def test_searches_agree_with_a_walk(slots, data):
    n_ops = len(slots)
    first = data.draw(st.integers(0, n_ops - 1))
    end = data.draw(st.integers(first, first + n_ops - 1))
    ns = data.draw(st.integers(1, 60))
    free = channel(slots)
    window = [(k, slots[k % n_ops]) for k in range(first, end)]
    assert free.finish(first, end, ns) == walk(window, ns)
    assert free.start(first, end, ns) == walk(window[::-1], ns)


def walk(window, ns):
    for slot, free in window:
        ns -= free
        if ns <= 0:
            return slot
    return None


@given(SLOTS, st.data())
def test_giving_back_undoes_any_takes(slots, data):
    n_ops, free = len(slots), channel(slots)
    takes = []
    for _ in range(data.draw(st.integers(1, 5))):
        first = data.draw(st.integers(0, n_ops - 1))
        end = data.draw(st.integers(first, first + n_ops - 1))
        take = data.draw(st.sampled_from([free.take_early, free.take_late]))
        before = free.free_ns(first, end)
        ns = data.draw(st.integers(0, 100))
        takes.append(take(first, end, ns))
        assert takes[-1].total_ns == min(ns, before)
        assert free.free_ns(first, end) == before - takes[-1].total_ns
    for taken in takes:
        free.give_back(taken)
    assert [free.free_ns(k, k + 1) for k in range(2 * n_ops)] == slots * 2


@pytest.mark.parametrize(("first", "at"), [(1, (1, 2)), (3, (3, 0)), (6, (2, 3))])
def test_add_cyclic_wraps(first, at):
    doubled = np.zeros(8, dtype=np.int64)
    add_cyclic(doubled, first, np.array([5, 7]))
    expected = [0] * 4
    expected[at[0]], expected[at[1]] = 5, 7
    assert doubled.tolist() == expected * 2
