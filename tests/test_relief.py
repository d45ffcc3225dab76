"""What moving a tensor relieves, against counting op by op."""

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, traces

from teraio.planner.bandwidth import transfer_ns
from teraio.planner.controls import problem_of
from teraio.planner.hardware import ASSUMED
from teraio.planner.plan import Budget, Controls
from teraio.planner.relief import Cost, costs, rank, relief
from teraio.planner.step import Interval, load_step, peak


def problem_for(trace, memory_bytes, *, host_bytes=0, channels=ASSUMED, **rules):
    rules = {"min_tensor_bytes": 0} | rules
    budget = Budget(memory_bytes, host_bytes, 0.0)
    return problem_of(load_step(trace), budget, channels, Controls(**rules))


def by_hand(problem, interval):
    """Return how many ops inside are over, and the bytes taken from each of them."""
    step, n_ops = problem.step, len(problem.step.ops)
    needed = step.demand.tolist()
    taken = {}
    for position in range(interval.after_op + 1, interval.needed_by_op):
        over = needed[position % n_ops] - problem.planned_bytes
        if over > 0:
            taken[position % n_ops] = min(over, step.tensors[interval.tensor].size)
    return taken


def small():
    """Two weights and a spike of 6 MiB at op 3, 4 MiB over a budget of 10 MiB."""
    return make_trace(
        8,
        [
            T(1, 6 * MIB, "0r 7r", name="a"),
            T(2, 2 * MIB, "1r 5rw", name="b"),
            T(3, 6 * MIB, "3w", 3, 3),
        ],
    )


def test_no_more_is_relieved_than_an_op_is_over():
    problem = problem_for(small(), 10 * MIB)
    found = {problem.step.tensors[i.tensor].name: i for i in problem.intervals}
    assert relief(problem.step, found["a"], 10 * MIB) == (1, 4 * MIB, 3)
    inside = Interval(1, 1, 5)
    assert relief(problem.step, inside, 10 * MIB) == (1, 2 * MIB, 3)
    assert relief(problem.step, inside, 14 * MIB) == (0, 0, None)


def test_a_tensor_that_is_never_written_costs_no_write():
    problem = problem_for(small(), 10 * MIB, host_bytes=MIB)

    def ns(tier, nbytes, *, to_gpu):
        return transfer_ns(ASSUMED, tier, nbytes, to_gpu=to_gpu)

    assert costs(problem, 0) == tuple(
        Cost(tier, 0, ns(tier, 6 * MIB, to_gpu=True)) for tier in ("ssd", "host")
    )
    assert costs(problem, 1)[0].write_ns == ns("ssd", 2 * MIB, to_gpu=False)
    assert costs(problem_for(small(), 10 * MIB, never_ssd=("b",)), 1) == ()


def test_the_cheapest_for_each_byte_relieved_is_the_first():
    problem = problem_for(small(), 10 * MIB)
    ranks = {problem.step.tensors[i.tensor].name: place for i, place in rank(problem).items()}
    # "a" is read only and relieves 4 MiB; "b" is written and read and relieves 2 MiB.
    assert ranks == {"a": 1, "b": 2}


def test_nothing_has_a_rank_in_a_step_that_fits():
    assert rank(problem_for(small(), 14 * MIB)) == {}


@examples(40)
@given(traces(), hardware(), st.floats(0, 1.1), st.sampled_from([0, 8 * MIB]))
def test_relief_and_ranks_are_those_counted_by_hand(trace, channels, share, host_bytes):
    memory = int(share * peak(load_step(trace)))
    problem = problem_for(trace, memory, host_bytes=host_bytes, channels=channels)
    ranks = rank(problem)
    prices = {}
    for interval in problem.intervals:
        taken = by_hand(problem, interval)
        found = relief(problem.step, interval, memory)
        assert (found.over_ops, found.nbytes) == (len(taken), max(taken.values(), default=0))
        assert (interval in ranks) == bool(taken)
        if taken:
            assert taken[found.op] == found.nbytes
            ways = costs(problem, interval.tensor)
            prices[interval] = min(w.write_ns + w.read_ns for w in ways) / found.nbytes
    assert sorted(ranks.values()) == list(range(1, len(prices) + 1))
    in_order = [prices[interval] for interval in sorted(ranks, key=ranks.__getitem__)]
    assert in_order == sorted(in_order) == pytest.approx(sorted(prices.values()))
