"""Every program of the suite gives under teraio, to the bit, what it gives without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner import differing, fares_as, missing, outcome_of, summary
from suite import IN_MAKE_TEST, PROGRAMS, Program, is_thorough
from table import PAGE, page, read_outcomes

EACH = [
    pytest.param(program, id=program.name, marks=[pytest.mark.thorough] * is_thorough(program))
    for program in PROGRAMS
]


@pytest.mark.parametrize("program", EACH)
def test_a_program_fares_as_the_table_says(program: Program, tmp_path: Path) -> None:
    if lacking := missing(program):
        pytest.skip(f"needs {', '.join(lacking)}")
    outcome = outcome_of(program, tmp_path)

    assert differing(outcome.plain, outcome.profiled) == set(), "recording changed a result"
    if program.refused:
        assert program.refused in outcome.said
    else:
        assert differing(outcome.plain, outcome.planned) == set(), "the plan changed a result"
        assert outcome.report["offloaded_bytes"]["ssd"] > 0
        assert outcome.report["prefetched_bytes"]["ssd"] > 0
        kept_budget = outcome.report["peak_bytes"] <= outcome.report["budget_bytes"]
        assert kept_budget or outcome.report["over_budget_ops"], "the budget was exceeded silently"
    if program.stays:
        assert "stays: it is pinned to the device" in outcome.why
    found, kept = summary(outcome), read_outcomes()[program.name]
    assert fares_as(found, kept), f"{found}, but the table is made from {kept}"


def test_the_page_is_made_from_the_outcomes() -> None:
    outcomes = read_outcomes()
    assert list(outcomes) == [program.name for program in PROGRAMS]
    assert PAGE.read_text() == page(outcomes)


def test_what_is_not_as_planned_is_explained() -> None:
    for program in PROGRAMS:
        found = read_outcomes()[program.name]
        flaws = [found.get(key) for key in ("differing", "not_executed", "over_budget_ops")]
        assert program.note or not any(flaws), program.name


def test_another_outcome_is_noticed() -> None:
    kept = {
        "outcome": "moved",
        "steps": 5,
        "differing": [1],
        "not_executed": 0,
        "over_budget_ops": 2,
    }
    assert fares_as(kept | {"over_budget_ops": 0}, kept)
    worse = [
        {"outcome": "resident"}, {"steps": 4}, {"differing": []}, {"differing": [1, 2]},
        {"not_executed": 1},
    ]  # fmt: skip
    assert not any(fares_as(kept | change, kept) for change in worse)
    assert not fares_as(kept, {"outcome": "refused"})
    assert not fares_as({"outcome": "refused"}, kept)


def test_make_test_has_some_of_each_group() -> None:
    names = {program.name for program in PROGRAMS}
    assert names >= IN_MAKE_TEST
    groups = {program.group for program in PROGRAMS}
    assert {program.group for program in PROGRAMS if not is_thorough(program)} == groups


def test_each_name_is_there_once() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(set(names)) == len(names)


def test_every_optimizer_of_torch_is_there() -> None:
    torch = pytest.importorskip("torch")
    classes = {
        name
        for name, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
    } - {"Optimizer", "SparseAdam"}  # which has a program of its own
    words = [program.words for program in PROGRAMS if program.words[:1] == ("stepped",)]
    assert {word[1] for word in words} >= classes
