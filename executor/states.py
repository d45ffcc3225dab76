"""The states of a storage's bytes, and the only moves between them."""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """Where the bytes of one storage are."""

    RESIDENT = "resident"
    """On the device, nothing under way."""
    WRITING = "writing"
    """On the device, being copied to a tier; not to be written meanwhile."""
    ABSENT = "absent"
    """In a tier only."""
    READING = "reading"
    """On the way back into a fresh buffer."""
    FAILED = "failed"
    """A read failed; the storage's error is raised at every use."""


MOVES: Final = {
    State.RESIDENT: frozenset({State.WRITING, State.ABSENT}),
    State.WRITING: frozenset({State.RESIDENT, State.ABSENT}),
    State.ABSENT: frozenset({State.READING}),
    State.READING: frozenset({State.RESIDENT, State.FAILED}),
    State.FAILED: frozenset[State](),
}


class IllegalMoveError(RuntimeError):
    """A move that the state machine does not have: a fault in teraio itself."""


def require_move(before: State, after: State, tensor: int) -> None:
    """Raise IllegalMoveError unless a storage may go from `before` to `after`."""
    if after not in MOVES[before]:
        msg = f"storage {tensor} cannot go from {before.value} to {after.value}"
        raise IllegalMoveError(msg)
