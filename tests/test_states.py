"""One state machine per storage: the legal moves and no others."""

from __future__ import annotations

import itertools

import pytest
import torch

from teraio.executor.page import FOREVER, NEVER, Page
from teraio.executor.states import MOVES, IllegalMoveError, State, require_move

LEGAL = {
    ("resident", "writing"),  # an offload begins
    ("resident", "absent"),  # a drop
    ("writing", "absent"),  # the write is over
    ("writing", "resident"),  # it is wanted back, or the write failed
    ("absent", "reading"),  # a fetch begins
    ("reading", "resident"),  # the read is over
    ("reading", "failed"),  # the read failed
}


def test_every_state_is_in_the_table() -> None:
    assert set(MOVES) == set(State)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_legal_moves_are_made(before: State, after: State) -> None:
    page = Page(torch.zeros(3).untyped_storage(), 17)
    page.state = before
    if (before.value, after.value) in LEGAL:
        page.move_to(after)
        assert page.state is after
        return
    with pytest.raises(IllegalMoveError) as caught:
        page.move_to(after)
    assert str(caught.value) == f"storage 17 cannot go from {before.value} to {after.value}"
    assert page.state is before


def test_every_state_can_be_reached_and_only_failure_is_final() -> None:
    reached, pending = set[State](), [State.RESIDENT]
    while pending:
        state = pending.pop()
        if state not in reached:
            reached.add(state)
            pending += MOVES[state]
    assert reached == set(State)
    assert [state for state in State if not MOVES[state]] == [State.FAILED]


def test_an_illegal_move_is_no_error_of_the_user() -> None:
    with pytest.raises(RuntimeError):
        require_move(State.FAILED, State.RESIDENT, 1)


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        (State.RESIDENT, True),
        (State.WRITING, True),
        (State.READING, True),
        (State.ABSENT, False),
        (State.FAILED, False),
    ],
)
def test_when_a_page_counts_against_the_budget(state: State, holds: bool) -> None:
    page = Page(torch.zeros(3).untyped_storage(), 17)
    page.state = state
    assert page.holds_memory == holds


def test_a_new_page_is_resident_dirty_and_free_to_move() -> None:
    page = Page(torch.zeros(129).untyped_storage(), 17)
    assert (page.state, page.dirty, page.nbytes, page.size) == (State.RESIDENT, True, 516, 1024)
    assert page.pinned_until == NEVER < 0 < FOREVER
