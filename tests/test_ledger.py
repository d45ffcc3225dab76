import numpy as np
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from problems import problem_of
from traces import MIB, hardware, traces

from teraio.planner.policies.ledger import Ledger
from teraio.planner.step import load_step, peak


@examples(40)
@given(traces(), hardware(), st.sampled_from([0, 8 * MIB]), st.data())
def test_one_interval_and_all_at_once_say_the_same(trace, channels, host_bytes, data):
    memory = peak(load_step(trace)) // 2
    ledger = Ledger(problem_of(trace, memory, host_bytes=host_bytes, hardware=channels))
    rows = np.arange(len(ledger.first))
    tiers = ("ssd", "host") if host_bytes else ("ssd",)
    for row in data.draw(st.permutations(rows.tolist())):
        for tier in tiers:
            gone, start = ledger.windows(rows, tier)
            waits = ledger.waits(rows, tier, 3)
            for other in rows.tolist():
                window = ledger.window(other, tier)
                possible = gone[other] < start[other]
                assert possible == (window.gone < window.start)
                assert not possible or window[1:] == (gone[other], start[other])
                assert bool(waits[other]) == ledger.wait(other, tier, 3)
        window = ledger.window(row, data.draw(st.sampled_from(tiers)))
        if window.gone < window.start:
            ledger.place(row, window)
    ledger.prefetch_earlier()
    over = ledger.problem.step.demand - memory
    for row, window in ledger.placed.items():
        assert ledger.first[row] <= window.gone < window.start <= ledger.end[row]
        for position in range(window.gone, window.start):
            over[position % ledger.n_ops] -= ledger.size[row]
    assert ledger.memory.over.tolist() == over.tolist() * 2


@examples(40)
@given(traces(), hardware())
def test_starting_earlier_puts_no_op_over_the_budget(trace, channels):
    ledger = Ledger(problem_of(trace, peak(load_step(trace)) // 2, hardware=channels))
    for row in range(len(ledger.first)):
        window = ledger.window(row, "ssd")
        if window.gone < window.start:
            ledger.place(row, window)
    before = np.maximum(ledger.memory.over, 0)
    ledger.prefetch_earlier()
    assert (np.maximum(ledger.memory.over, 0) == before).all()
