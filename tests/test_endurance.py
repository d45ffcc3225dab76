"""Wear of the SSDs, against figures worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, training_trace

from teraio.planner.endurance import Endurance, endurance
from teraio.planner.hardware import ASSUMED, with_drives, with_tbw
from teraio.planner.make import make_plan
from teraio.planner.plan import Traffic

TB = 10**12


@pytest.fixture(scope="module")
def plan():
    return make_plan(
        training_trace(6), sha256="", memory_bytes=40 * MIB, hardware=ASSUMED, policy="greedy"
    )


def writing(plan, nbytes, step_ns, hardware):
    told = replace(plan.prediction, step_ns=step_ns, ssd=Traffic(nbytes, nbytes, 0))
    return endurance(replace(plan, prediction=told, hardware=hardware))


def test_two_gigabytes_a_second_wear_a_drive_of_1200_tbw_out_in_a_week(plan):
    # 1,200 TB at 2 GB/s are 600,000 s.
    worn = writing(plan, 10 * 10**9, 5 * 10**9, with_tbw(ASSUMED, 1200 * TB))
    assert worn.step_bytes == 10 * 10**9
    assert worn.day_bytes == 2 * 10**9 * 86_400
    assert worn.days == pytest.approx(600_000 / 86_400)


def test_drives_share_what_is_written(plan):
    four = with_drives(with_tbw(ASSUMED, 600 * TB), 4)
    worn = writing(plan, 10**9, 10**9, four)
    assert worn == Endurance(10**9, 86_400 * 10**9, 4, 600 * TB, worn.days)
    assert worn.days == pytest.approx(4 * 600 * TB / (86_400 * 10**9))


def test_without_a_rating_or_without_writes_there_is_no_end(plan):
    assert writing(plan, 10**9, 10**9, ASSUMED).days is None
    idle = writing(plan, 0, 10**9, with_tbw(ASSUMED, TB))
    assert (idle.day_bytes, idle.days) == (0, None)


def test_the_figures_of_a_plan(plan):
    worn = endurance(plan)
    assert worn.step_bytes == plan.prediction.ssd.to_tier_bytes > 0
    assert worn.day_bytes == worn.step_bytes * 86_400 * 10**9 // plan.prediction.step_ns


@given(st.integers(1, 10**13), st.integers(1, 10**13), st.integers(1, 64), st.integers(1, 10**16))
def test_a_drive_lasts_as_long_as_its_share_of_what_is_written(nbytes, step_ns, drives, tbw):
    plan = make_plan(training_trace(2), sha256="", memory_bytes=1 << 30, hardware=ASSUMED)
    worn = writing(plan, nbytes, step_ns, with_drives(with_tbw(ASSUMED, tbw), drives))
    seconds = worn.days * 86_400
    assert seconds * nbytes / (step_ns / 10**9) / drives == pytest.approx(tbw)
