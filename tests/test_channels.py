"""The queues against hand-worked cases and against a replay one ns at a time."""

from collections import deque

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from teraio.planner.bandwidth import transfer_ns
from teraio.planner.channels import Link
from teraio.planner.plan import Hardware, HostLink, Ssd

GB = 10**9
MB = 10**6
MS = 10**6
"""1 GB/s moves 1 MB in 1 ms."""


def link(ssd, host, latency_ns=0):
    return Link(Hardware(Ssd(ssd, ssd, latency_ns), HostLink(host, host), {}), to_gpu=True)


def ends(both, ssd_bytes, host_bytes):
    """Return when an SSD and a host transfer are done that are released at 0."""
    transfers = [both.transfer("ssd", ssd_bytes), both.transfer("host", host_bytes)]
    for transfer in transfers:
        transfer.channel.release(transfer, 0)
    both.play(10**15)
    return [transfer.done_ns for transfer in transfers]


def test_alone_each_has_what_its_channel_gives():
    assert ends(link(2 * GB, 4 * GB), 4 * MB, 0) == [2 * MS, 0]
    assert ends(link(8 * GB, 4 * GB), 4 * MB, 0) == [1 * MS, 0]  # no faster than the link
    assert ends(link(2 * GB, 4 * GB), 0, 4 * MB) == [0, 1 * MS]


def test_a_fast_ssd_has_half_of_the_link_and_all_of_it_once_it_is_alone():
    # Half of 1 GB/s each until the host's MB is there at 2 ms; 2 MB of the SSD's are left.
    assert ends(link(9 * GB, GB), 3 * MB, MB) == [4 * MS, 2 * MS]


def test_a_slow_ssd_leaves_the_host_what_it_cannot_use():
    # 1 and 3 of 4 GB/s; the host transfer has 6 - 3 MB left when the SSD is done.
    assert ends(link(GB, 4 * GB), MB, 6 * MB) == [1 * MS, 1 * MS + 3 * MS // 4]


def test_the_latency_keeps_the_channel_but_not_the_link():
    # The host moves 1 MB alone in the first ms; then both move 1 MB in 2 ms.
    assert ends(link(GB, GB, latency_ns=MS), MB, 2 * MB) == [3 * MS, 3 * MS]
    # Over before the SSD's bytes flow, it takes nothing from them.
    assert ends(link(GB, GB, latency_ns=MS), MB, MB) == [2 * MS, MS]


def test_half_of_an_odd_rate_is_exact():
    assert ends(link(3, 3), 3, 3) == [2 * GB, 2 * GB]


def test_a_transfer_that_an_op_waits_for_goes_before_those_that_have_not_begun():
    both = link(GB, 2 * GB)
    transfers = [both.transfer("ssd", MB) for _ in range(3)]
    for transfer in transfers:
        transfer.channel.release(transfer, 0)
    assert both.wait(transfers[2:], MS // 2) == 2 * MS
    both.play(10**15)
    assert [t.done_ns for t in transfers] == [MS, 3 * MS, 2 * MS]
    assert [t.lag_ns for t in transfers] == [MS, 3 * MS, 2 * MS]


def test_two_that_one_op_waits_for_share_the_link():
    both = link(GB, GB)
    transfers = [both.transfer(tier, MB) for tier in ("ssd", "host")]
    for transfer in transfers:
        transfer.channel.release(transfer, 0)
    assert both.wait(transfers, 0) == 2 * MS


RATES = st.integers(1, 9).map(lambda n: n * GB // 2)
MOVES = st.lists(
    st.tuples(st.sampled_from(["ssd", "host"]), st.integers(0, 30), st.integers(0, 60)),
    min_size=1,
    max_size=8,
).map(lambda moves: sorted(moves, key=lambda move: move[2]))


@examples(100)
@given(RATES, RATES, st.integers(0, 5), MOVES, st.integers(0, 80), st.data())
def test_as_one_ns_after_the_other(ssd, host, latency_ns, moves, now, data):
    both = link(ssd, host, latency_ns)
    transfers = [both.transfer(tier, nbytes) for tier, nbytes, _ in moves]
    released = [k for k, move in enumerate(moves) if move[2] <= now]
    due = data.draw(st.lists(st.sampled_from(released), unique=True)) if released else []
    for k in released:
        transfers[k].channel.release(transfers[k], moves[k][2])
    if due:
        both.wait([transfers[k] for k in due], now)
    # What is released later comes after all of these, as far as the order of calls matters.
    both.play(10**9)
    assert [transfers[k].done_ns for k in released] == one_by_one(
        ssd, host, latency_ns, [moves[k] for k in released], now, [released.index(k) for k in due]
    )


def one_by_one(ssd_rate, host_rate, latency_ns, moves, now, due):
    """Return when each of `moves` is done, of which `due` are waited for from `now` on."""
    left = [2 * nbytes * GB for _, nbytes, _ in moves]
    done: list[int | None] = [None] * len(moves)
    queues = {"ssd": deque(), "host": deque()}
    current: dict[str, int | None] = {"ssd": None, "host": None}
    flows_ns = dict.fromkeys(queues, 0)
    for k, (tier, _, _) in enumerate(moves):
        queues[tier].append(k)
    clock = 0
    while None in done:
        if clock == now:
            for k in reversed(due):
                if k in queues[moves[k][0]]:
                    queues[moves[k][0]].remove(k)
                    queues[moves[k][0]].appendleft(k)
        for tier, queue in queues.items():
            while True:
                k = current[tier]
                if k is not None and clock >= flows_ns[tier] and left[k] <= 0:
                    done[k], current[tier] = clock, None
                elif k is None and queue and moves[queue[0]][2] <= clock:
                    current[tier] = queue.popleft()
                    flows_ns[tier] = clock + (latency_ns if tier == "ssd" else 0)
                else:
                    break
        flowing = [t for t in queues if current[t] is not None and clock >= flows_ns[t]]
        slow = min(2 * ssd_rate, host_rate if len(flowing) == 2 else 2 * host_rate)
        rates = {"ssd": slow, "host": 2 * host_rate - (slow if len(flowing) == 2 else 0)}
        for tier in flowing:
            left[current[tier]] -= rates[tier]
        clock += 1
    return done


@pytest.mark.parametrize("to_gpu", [True, False])
@pytest.mark.parametrize("tier", ["ssd", "host"])
def test_alone_a_transfer_takes_what_the_policies_count_with(tier, to_gpu):
    hardware = Hardware(Ssd(3 * GB, 7 * GB, 11), HostLink(5 * GB, 2 * GB), {})
    for nbytes in (0, 1, 12_345):
        transfer = Link(hardware, to_gpu=to_gpu).transfer(tier, nbytes)
        assert transfer.alone_ns == transfer_ns(hardware, tier, nbytes, to_gpu=to_gpu)
