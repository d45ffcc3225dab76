"""Finalisers and signal handlers of the program, in the middle of teraio's own work."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from away import everything_away  # noqa: E402


class Cycle:
    """Garbage that uses a tensor when the cyclic collector finds it."""

    seen: list[float] = []  # noqa: RUF012

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.me = tensor, self

    def __del__(self) -> None:
        Cycle.seen.append(float(self.tensor.sum()))


def test_a_finaliser_sees_right_numbers() -> None:
    Cycle.seen.clear()
    kept = [torch.full((100,), float(i)) for i in range(4)]
    threshold = gc.get_threshold()
    try:
        with everything_away() as away:
            assert not gc.isenabled()
            gc.set_threshold(10, 2, 2)
            for _ in range(20):
                for i, tensor in enumerate(kept):
                    Cycle(kept[0] + i)
                    assert tensor.sum().item() == 100.0 * i
            gc.collect()
            assert len(Cycle.seen) == 80
            assert away.names
    finally:
        gc.set_threshold(*threshold)
    assert gc.isenabled()
    assert sorted(set(Cycle.seen)) == [0.0, 100.0, 200.0, 300.0]


def test_a_handler_waits_for_the_op_and_sees_right_numbers() -> None:
    kept = [torch.full((100,), float(i)) for i in range(4)]
    found: list[list[float]] = []

    def handler(_number: int, _frame: Any) -> None:
        found.append([tensor.sum().item() for tensor in kept])

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with everything_away():
            assert signal.getsignal(signal.SIGUSR1) is handler
            for _ in range(10):
                os.kill(os.getpid(), signal.SIGUSR1)
                assert [t.sum().item() for t in kept] == [0.0, 100.0, 200.0, 300.0]
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [[0.0, 100.0, 200.0, 300.0]] * 10


def test_an_error_raised_by_a_handler_leaves_everything_in_order() -> None:
    class TickError(Exception):
        pass

    kept = [torch.full((100,), float(i)) for i in range(4)]

    def handler(_number: int, _frame: Any) -> None:
        raise TickError

    before = signal.signal(signal.SIGALRM, handler)
    caught = 0
    try:
        with everything_away():
            for _ in range(40):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005)
                    for tensor in kept * 5:
                        tensor.sum()
                except TickError:
                    caught += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert [t.sum().item() for t in kept] == [0.0, 100.0, 200.0, 300.0]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caught > 0
