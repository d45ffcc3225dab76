"""Recorded times are brought down to those of a step that was not recorded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from teraio.profiler.fitting import fitted


def test_gaps_shrink_first() -> None:
    # 10 ns of work with 2 + 6 ns of gaps; 14 ns in all leaves half of the gaps.
    assert fitted([2, 13], [5, 5], 14) == ([1, 9], [5, 5])


def test_then_each_op_gives_as_much_as_it_has() -> None:
    # 30 ns of work in 21: 4 from the long ones and all of the short one.
    assert fitted([0, 20, 40], [14, 2, 14], 21) == ([0, 10, 10], [10, 0, 10])


def test_a_step_that_was_no_slower_stays() -> None:
    assert fitted([2, 13], [5, 5], 18) == ([2, 13], [5, 5])
    assert fitted([], [], 5) == ([], [])


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=30),
    st.integers(0, 40_000),
)
def test_any_times_fit(ops: list[tuple[int, int]], total_ns: int) -> None:
    at, starts, durations = 0, [], []
    for gap, duration in ops:
        starts.append(at + gap)
        durations.append(duration)
        at += gap + duration
    new_starts, new_durations = fitted(starts, durations, total_ns)
    ends = [start + duration for start, duration in zip(new_starts, new_durations, strict=True)]
    assert ends[-1] <= max(total_ns, 0) if at > total_ns else ends[-1] == at
    assert ends[-1] >= min(at, total_ns) - len(ops)  # whole ns
    assert all(end <= start for end, start in zip(ends, new_starts[1:], strict=False))
    assert all(new <= old for new, old in zip(new_durations, durations, strict=True))
