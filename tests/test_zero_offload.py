import pytest
from problems import FAST, offloads, prefetches, problem_of
from traces import MIB, training_trace

from teraio.planner.policies.zero_offload import zero_offload
from teraio.planner.problem import CannotFitError
from teraio.planner.step import load_step, peak

LAYERS = 4
WIDTH = 4 * MIB


def problem(host_bytes, *, less=MIB):
    trace = training_trace(LAYERS)
    return problem_of(trace, peak(load_step(trace)) - less, host_bytes=host_bytes, hardware=FAST)


def test_gradients_and_states_go_to_host_memory_and_nothing_else():
    answer = zero_offload(problem(1 << 30))
    assert {a.to for a in offloads(answer)} == {"host"}
    states, gradients = range(LAYERS, 2 * LAYERS), range(2 * LAYERS, 3 * LAYERS)
    # The gradient of layer 0 is used right after it is computed.
    assert {a.tensor for a in offloads(answer)} == {*states, *gradients} - {2 * LAYERS}


def test_they_come_back_for_the_update_one_module_ahead():
    """The update of layer k is op 16 + k."""
    fetched = {
        a.tensor: (a.after_op, a.needed_by_op) for a in prefetches(zero_offload(problem(1 << 30)))
    }
    assert [fetched[LAYERS + layer] for layer in (2, 3)] == [(16, 18), (17, 19)]
    assert [fetched[2 * LAYERS + layer] for layer in (2, 3)] == [(16, 18), (17, 19)]


def test_host_memory_must_hold_all_that_is_there_at_once():
    """All four states, and the gradients of layers 1 to 3 once they are computed."""
    with pytest.raises(CannotFitError, match="may use none"):
        zero_offload(problem(0))
    assert offloads(zero_offload(problem(7 * WIDTH)))
    with pytest.raises(CannotFitError, match=f"{7 * WIDTH} bytes of host memory"):
        zero_offload(problem(7 * WIDTH - 512))


def test_a_budget_that_activations_alone_exceed_is_refused():
    with pytest.raises(CannotFitError, match="still needs"):
        zero_offload(problem(1 << 30, less=12 * WIDTH))
