"""Rates as measured in a run, and what the next plan makes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli import failed, here
from hypothesis import given
from hypothesis import strategies as st

from teraio.executor.counters import Counters
from teraio.executor.report import build_report
from teraio.executor.speeds import ENOUGH_BYTES, MOST_STEPS, Speeds, covered
from teraio.planner.feedback import TO_GPU, TO_TIER, Measured, beside, read_rates, with_measured
from teraio.planner.hardware import ASSUMED
from teraio.planner.plan import Hardware, HostLink, Ssd
from teraio.planner.plan_file import read_plan
from teraio.profiler.errors import BadInputError, InputMissingError
from teraio_cli.run_summary import summarise

TRACE = Path(__file__).parent.parent / "sample_traces" / "llama.parquet"

MS = 1_000_000
HARDWARE = Hardware(
    Ssd(6 * 10**9, 5 * 10**9, 7),
    HostLink(4 * 10**9, 8 * 10**9),
    {"ssd": "given", "host_link": "measured"},
)


@dataclass
class Moved:
    """A transfer that is over."""

    nbytes: int
    when: tuple[int, int] | None
    done: bool = True

    def span(self) -> tuple[int, int] | None:
        return self.when

    def wait(self) -> None:
        """It is."""

    def promote(self) -> None:
        """It is."""

    def cancel(self) -> bool:
        return False


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12))
def test_the_union_of_intervals_is_what_any_of_them_covers(pairs: list[tuple[int, int]]) -> None:
    spans = [(min(pair), max(pair)) for pair in pairs]
    assert covered(spans) == len({at for begin, end in spans for at in range(begin, end)})


def test_a_rate_is_bytes_over_the_time_in_which_any_moved() -> None:
    speeds = Speeds()
    for begin in (100, 105, 300):  # 15 ms and 10 ms with bytes under way
        speeds.note("ssd", TO_TIER, Moved(ENOUGH_BYTES, (begin * MS, (begin + 10) * MS)))
    speeds.note("ssd", TO_GPU, Moved(ENOUGH_BYTES - 1, (0, 10 * MS)))
    speeds.note("host", TO_GPU, Moved(ENOUGH_BYTES, None))
    speeds.end_step(counts=True)
    assert speeds.rates() == {"ssd": {TO_TIER: 3 * ENOUGH_BYTES * 40}}


def test_only_the_first_steps_that_count_are_measured() -> None:
    speeds = Speeds()
    speeds.note("ssd", TO_TIER, Moved(ENOUGH_BYTES, (0, MS)))
    speeds.end_step(counts=False)
    assert speeds.rates() == {}
    for _ in range(MOST_STEPS):
        speeds.note("ssd", TO_TIER, Moved(ENOUGH_BYTES, (0, 2 * MS)))
        speeds.end_step(counts=True)
    for _ in range(3):
        speeds.note("ssd", TO_TIER, Moved(ENOUGH_BYTES, (0, MS)))
        speeds.end_step(counts=True)
    assert speeds.rates() == {"ssd": {TO_TIER: ENOUGH_BYTES * 500}}


def test_a_step_without_end_takes_no_more_and_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teraio.executor.speeds.MOST_NOTED", 2)
    speeds = Speeds()
    for begin in range(5):
        speeds.note("ssd", TO_TIER, Moved(ENOUGH_BYTES, (begin * MS, (begin + 1) * MS)))
    speeds.end_step(counts=True)
    assert speeds._bytes == {("ssd", TO_TIER): 2 * ENOUGH_BYTES}
    assert speeds.rates() == {"ssd": {TO_TIER: ENOUGH_BYTES * 1000}}


def test_what_goes_to_a_drive_goes_over_the_link_too() -> None:
    rates = {"ssd": {TO_TIER: 3_600_000_000, TO_GPU: 5_300_000_000}, "host": {TO_GPU: 1}}
    assert [*beside(rates, HARDWARE)] == [
        Measured("ssd", TO_TIER, 3_600_000_000, 4_000_000_000, "measured"),
        Measured("ssd", TO_GPU, 5_300_000_000, 6_000_000_000, "given"),
        Measured("host", TO_GPU, 1, 8_000_000_000, "measured"),
    ]
    assert [way.is_slow for way in beside(rates, HARDWARE)] == [False, True, True]


def test_measured_rates_take_the_place_of_the_others() -> None:
    found = with_measured(HARDWARE, {"ssd": {TO_GPU: 11}, "host": {TO_TIER: 12}}, "run.json")
    assert found.ssd == Ssd(11, 5 * 10**9, 7)
    assert found.host_link == HostLink(12, 8 * 10**9)
    assert found.source == {
        "ssd": "given",
        "host_link": "measured",
        "ssd.read_bytes_per_s": "measured in run.json",
        "host_link.to_host_bytes_per_s": "measured in run.json",
    }


def test_rates_are_read_from_a_report(tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    report.write_text(json.dumps({"steps": 3, "rates": {"ssd": {TO_TIER: 5}, "cloud": 3}}))
    assert read_rates(report) == {"ssd": {TO_TIER: 5}}
    assert with_measured(ASSUMED, read_rates(report), "run.json").ssd.write_bytes_per_s == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "`rates` is missing"),
        ('{"rates": {}}', "no rate was measured"),
        ('{"rates": {"ssd": {}}}', "no rate was measured"),
        ('{"rates": {"ssd": {"to_gpu_bytes_per_s": 0}}}', "`to_gpu_bytes_per_s` is 0"),
        ('{"rates": {"ssd": {"to_gpu_bytes_per_s": "fast"}}}', "not a whole number"),
        ('{"rates": {"ssd": 4}}', "`ssd` is not an object"),
        ("no", "report"),
    ],
)
def test_a_report_without_rates_is_a_clear_error(tmp_path: Path, text: str, said: str) -> None:
    report = tmp_path / "run.json"
    report.write_text(text)
    with pytest.raises(BadInputError, match=said):
        read_rates(report)


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="no such report"):
        read_rates(tmp_path / "none.json")


def test_what_a_run_measured_is_in_the_next_plan(tmp_path: Path) -> None:
    report, plan = tmp_path / "run.json", tmp_path / "plan.json"
    report.write_text(json.dumps({"rates": {"ssd": {TO_TIER: 1_234_000_000, TO_GPU: 10**9}}}))
    words = ["plan", TRACE, "--memory", "60%", "--policy", "teraio2025", "-o", plan]
    done = here(*words, "--feedback", report)
    assert done.returncode == 0, done.stderr.decode()
    made = read_plan(plan)
    assert (made.hardware.ssd.write_bytes_per_s, made.hardware.ssd.read_bytes_per_s) == (
        1_234_000_000,
        10**9,
    )
    assert f"measured in {report}" in done.stderr.decode()
    given = here(*words, "--force", "--feedback", report, "--ssd-read", "2GB/s")
    assert given.returncode == 0
    assert read_plan(plan).hardware.ssd.read_bytes_per_s == 2 * 10**9
    failed(here(*words, "--force", "--feedback", tmp_path / "none.json"), 66)
    report.write_text("{}")
    assert "`rates` is missing" in failed(here(*words, "--force", "--feedback", report), 65)


def test_a_run_says_what_was_slow(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    words = ["plan", TRACE, "--memory", "60%", "--policy", "teraio2025", "-o", plan]
    assert here(*words, "--ssd-read", "2GB/s", "--ssd-write", "1GB/s").returncode == 0
    counters = Counters(step_ns=[5, 6])
    counters.speeds.note("ssd", TO_TIER, Moved(ENOUGH_BYTES, (0, 64 * MS)))
    counters.speeds.note("ssd", TO_GPU, Moved(ENOUGH_BYTES, (0, 64 * MS)))
    counters.speeds.end_step(counts=True)
    made = read_plan(plan)
    done = build_report(
        made, counters, io_path={}, memory="", allocator=None, verified_steps=0
    )  # fmt: skip
    summarise(done, made)
    said = capfd.readouterr().err
    assert "ssd read 1.05 GB/s, under 90% of the 2.00 GB/s that the plan counts on (given)" in said
    assert "ssd wrote" not in said
    assert "`teraio plan --feedback FILE` takes them" in said
