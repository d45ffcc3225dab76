import pytest
from problems import FAST, offloads, prefetches, problem_of
from traces import MIB, T, make_trace, training_trace

from teraio.planner.policies.visits import Visits
from teraio.planner.policies.zero_infinity import zero_infinity
from teraio.planner.problem import CannotFitError
from teraio.planner.step import load_step, peak


def test_parameters_gradients_and_states_go_to_the_ssd_and_nothing_else():
    trace = training_trace(4)
    problem = problem_of(trace, peak(load_step(trace)) - MIB, host_bytes=1 << 40, hardware=FAST)
    kinds = {tensor.id: tensor.kind for tensor in problem.step.tensors}
    answer = zero_infinity(problem)
    assert {a.to for a in offloads(answer)} == {"ssd"}
    assert {kinds[a.tensor] for a in offloads(answer)} == {
        "parameter",
        "gradient",
        "optimizer_state",
    }
    # The gradient of layer 0 is used right after it is computed, and no other activation moves.
    moved = {a.tensor for a in offloads(answer)}
    assert moved == {t.id for t in problem.step.tensors if t.kind != "activation"} - {8}


def test_a_module_is_fetched_when_the_one_before_it_begins():
    """Layer k's forward pass is at ops 2k and 2k + 1 of a step with room for two layers."""
    trace = training_trace(6, op_ns=10_000_000)
    problem = problem_of(trace, peak(load_step(trace)) - MIB, hardware=FAST)
    fetched = {(a.tensor, a.needed_by_op): a.after_op for a in prefetches(zero_infinity(problem))}
    assert [fetched[layer, 2 * layer] for layer in (2, 3, 4, 5)] == [1, 3, 5, 7]
    assert fetched[1, 2] == len(problem.step.ops) - 1


def test_visits_follow_the_parameters():
    trace = make_trace(
        8,
        [
            T(1, MIB, "0r 1r 6r", kind="parameter", name="a.weight"),
            T(2, MIB, "1r 7r", kind="parameter", name="a.bias"),
            T(3, MIB, "2r 4r", kind="parameter", name="b.weight"),
        ],
    )
    visits = Visits(load_step(trace))
    # Ops 0 and 1 visit a, 2 and 3 b; the backward pass (4 on) b again, then a.
    assert [visits.number(op) for op in range(9)] == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert [visits.ahead_of(op) for op in (0, 2, 4, 6, 8)] == [-3, -1, 1, 3, 5]


def test_visits_without_parameters_follow_the_modules_of_the_ops():
    visits = Visits(load_step(make_trace(4, [T(1, MIB, "0r")])))
    assert [visits.number(op) for op in range(4)] == [1, 2, 3, 4]


def test_it_fails_where_it_may_not_use_the_ssd_and_where_its_kinds_are_not_enough():
    trace = training_trace(4)
    with pytest.raises(CannotFitError, match="SSD"):
        zero_infinity(problem_of(trace, MIB, host_bytes=1 << 40, ssd=False))
    activations = make_trace(10, [T(k, 4 * MIB, f"{k}w 9r", alloc=k, free=9) for k in range(3)])
    with pytest.raises(CannotFitError, match="still needs"):
        zero_infinity(problem_of(activations, 8 * MIB))
