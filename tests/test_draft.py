"""What multipliers prove: never more than is true, however wrong they are."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from teraio.planner.draft import Draft, proven_least
from teraio.planner.solver import Model, solve


def test_a_draft_becomes_a_model() -> None:
    draft = Draft()
    free = draft.columns(1, np.inf, cost=1.0)
    bounded = draft.columns(2, 5.0, whole=True)
    rows = draft.rows([1.0, 2.0], np.inf)
    draft.put(rows, bounded, 1.0)
    draft.put(rows[1], free, 3.0)
    model = draft.model()
    assert model.cost.tolist() == [1, 0, 0]
    assert model.upper.tolist() == [np.inf, 5, 5]
    assert model.whole.tolist() == [False, True, True]
    assert list(zip(model.row, model.column, model.value, strict=True)) == [
        (0, 1, 1.0), (1, 2, 1.0), (1, 0, 3.0),
    ]  # fmt: skip
    assert Draft().model().cost.tolist() == []


def relief() -> Model:
    """Wait d >= 0 for a flow of 0 <= f <= 5 at rate 2 in no time; 3 must flow: d = 1.5."""
    draft = Draft()
    wait, flow = draft.columns(1, np.inf, cost=1.0), draft.columns(1, 5.0)
    draft.put(draft.rows(3.0, np.inf), flow, 1.0)
    channel = draft.rows(-np.inf, 0.0)
    draft.put(channel, flow, 0.5)
    draft.put(channel, wait, -1.0)
    return draft.model()


@pytest.mark.parametrize(
    ("duals", "proven"),
    [
        ((0.5, -1.0), 1.5),
        ((0.25, -0.5), 0.75),
        ((1.0, -2.0), 1.5),  # twice too strong: scaled down
        ((-0.5, 1.0), 0.0),  # of the wrong sign: nothing
        ((0.0, -1.0), 0.0),
        ((0.75, -1.0), 1.0),  # 0.75 x 3 less the 0.25 x 5 that the flow takes back
    ],
)
def test_right_and_wrong_multipliers(duals: tuple[float, float], proven: float) -> None:
    found = proven_least(relief(), np.array(duals))
    assert found == pytest.approx(proven, abs=1e-12)
    assert found <= proven


@st.composite
def programs(draw: st.DrawFn) -> Model:
    """Any small program of this kind that has an answer."""
    draft = Draft()
    number = st.integers(1, 50)
    waits = draft.columns(draw(st.integers(1, 3)), np.inf, cost=1.0)
    flows = draft.columns(draw(st.integers(1, 4)), float(draw(number)))
    for wait in waits:
        row = draft.rows(-np.inf, float(draw(number)))
        draft.put(row, wait, -1.0)
        for flow in flows:
            draft.put(row, flow, draw(number) / 7)
    draft.put(draft.rows(draw(st.integers(0, 50)) / 50, np.inf), flows, 1.0)
    balance = draft.rows(0.0, 0.0)
    draft.put(balance, flows[:1], 1.0)
    draft.put(balance, draft.columns(1, 60.0), -1.0)
    return draft.model()


@examples(40)
@given(programs(), st.data())
def test_no_multipliers_prove_too_much(model: Model, data: st.DataObject) -> None:
    found = solve(model)
    assert found.objective is not None
    count = len(model.row_lower)
    any_float = st.floats(-100, 100, allow_nan=False)
    wrong = np.array(data.draw(st.lists(any_float, min_size=count, max_size=count)))
    assert proven_least(model, wrong) <= found.objective + 1e-7
    assert found.duals is not None
    assert proven_least(model, found.duals) == pytest.approx(found.objective, abs=1e-5)
