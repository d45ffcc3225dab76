"""The controls of `teraio plan`, its endurance figures and `--explain`, through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from cli import failed, here, names_in, teraio
from traces import MIB, training_trace

from teraio.planner.plan import Controls
from teraio.planner.plan_file import read_plan
from teraio.profiler.errors import UsageError
from teraio.profiler.trace import write_trace
from teraio_cli.explain_tables import sentence
from teraio_cli.main import app
from teraio_cli.plan_options import controls_of

QUICK = ("--policy", "greedy")
"""Plans that take no second, where it does not matter which."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    write_trace(training_trace(6), path)
    return path


def test_controls_reach_the_plan_the_report_and_inspect(trace: Path, tmp_path: Path) -> None:
    done = teraio(
        "plan", trace, "--memory", "40MiB", "--host-memory", "64MiB", "--tiers", "ssd,host",
        "--ssds", "4", "--ssd-read", "1GB/s", "--tbw", "600TB", "--ssd-writes", "24MiB",
        "--keep", r"layers\.0\.weight$", "--keep", "nothing", "--never-ssd", "^optimizer_state:",
        "--min-tensor", "2MiB", "--time-limit", "5", *QUICK, cwd=tmp_path,
    )  # fmt: skip
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (0, b""), said
    assert said.startswith("warning: `--keep nothing` matches no tensor\n")
    assert r"kept         1 tensors, 4.00 MiB, that match `layers\.0\.weight$`" in said
    assert "never on ssd 6 tensors, 24.00 MiB, that match `^optimizer_state:`" in said
    assert "write limit  24.00 MiB to the SSD in each step" in said
    assert "rates        ssd reads 4 x given, the rest 4 x assumed: one" in said
    plan = read_plan(tmp_path / "plan.json")
    assert plan.controls == Controls(
        tiers=("ssd", "host"),
        keep=(r"layers\.0\.weight$", "nothing"),
        never_ssd=("^optimizer_state:",),
        min_tensor_bytes=2 * MIB,
        ssd_write_bytes=24 * MIB,
    )
    ssd = plan.hardware.ssd
    assert (ssd.read_bytes_per_s, ssd.drives, ssd.tbw_bytes) == (4 * 10**9, 4, 600 * 10**12)
    shown = teraio("inspect", "plan.json", cwd=tmp_path).stdout.decode()
    for words in ("ssd, host", "^optimizer_state:", "24.00 MiB to the SSD", "4 drives together"):
        assert words in shown


def test_wear_is_told_by_plan_and_inspect(trace: Path, tmp_path: Path) -> None:
    words = ("--tbw", "600TB", *QUICK, "--json")
    done = here("plan", trace, "--memory", "40MiB", *words, cwd=tmp_path)
    summary = json.loads(done.stdout)
    wear = summary["endurance"]
    assert wear["step_bytes"] == summary["prediction"]["ssd"]["to_tier_bytes"] > 0
    assert wear["days"] == pytest.approx(600 * 10**12 / wear["day_bytes"])
    line = next(x for x in done.stderr.decode().splitlines() if x.startswith("ssd wear"))
    assert line.endswith("days to the rated 600.00 TB")
    shown = here("inspect", "plan.json", "--json", cwd=tmp_path)
    summary["policy"]["seconds"] = None
    assert json.loads(shown.stdout) == summary


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tiers", "host"), "`--tiers host` needs host memory"),
        (("--tiers", "ssd,host"), "`--tiers ssd,host` needs host memory"),
        (("--tiers", "tape"), "not tiers: `tape`"),
        (("--tiers", ""), "not tiers"),
        (("--ssds", "0"), "must be more than zero: 0"),
        (("--ssds", "-2"), "must be more than zero: -2"),
        (("--ssd-read", "0GB/s"), "more than zero"),
        (("--ssd-write", "-1GB/s"), "more than zero"),
        (("--host-link", "0B/s"), "more than zero"),
        (("--ssd-writes", "-1GiB"), "more than zero"),
        (("--tbw", "0TB"), "more than zero"),
        (("--tbw", "-5"), "more than zero"),
        (("--keep", "("), "not a regular expression: `(`"),
        (("--never-ssd", "*"), "not a regular expression: `*`"),
        (("--time-limit", "0"), "time limit"),
        (("--time-limit", "nan"), "time limit"),
        (("--explain", "layers.0.wieght"), "the closest are `layers.0.weight`"),
        (("--explain", "99999"), "no tensor is `99999`"),
        (("--explain", "exp_avg"), "6 tensors are `exp_avg`"),
        (("--explain", "0", "-o", "-"), "cannot both go to stdout"),
        (("--json", "-o", "-"), "cannot both go to stdout"),
    ],
)
def test_usage_errors(options: tuple[str, ...], words: str, trace: Path, tmp_path: Path) -> None:
    command = typer.main.get_command(app)
    output = () if "-o" in options else ("-o", f"{tmp_path}/plan.json")
    with pytest.raises(UsageError) as caught:
        command(["plan", str(trace), "--memory", "40MiB", *options, *output], standalone_mode=False)
    assert words in str(caught.value) + caught.value.hint
    assert caught.value.hint
    assert names_in(tmp_path) == ["trace.parquet"]


def test_what_a_control_makes_impossible_names_it(trace: Path, tmp_path: Path) -> None:
    words = ("plan", trace, "--memory", "20MiB", *QUICK)
    said = failed(here(*words, "--keep", "^parameter:", cwd=tmp_path), 69)
    assert "MiB of it is idle there in tensors that are kept (`--keep`)" in said
    said = failed(here(*words, "--ssd-writes", "0", cwd=tmp_path), 69)
    assert "`--ssd-writes`" in said
    host = ("--host-memory", "4MiB", "--tiers", "host")
    said = failed(here(*words, *host, cwd=tmp_path), 69)
    assert "at least 71303168 bytes (68.00 MiB) are needed" in said
    assert "least possible" not in said
    assert "hint: `--or-minimum` searches" in said
    done = here(*words, "--ssd-writes", "40MiB", "--or-minimum", cwd=tmp_path)
    assert ", the least that was found" in done.stderr.decode()


def test_host_memory_that_has_no_effect_is_told(trace: Path, tmp_path: Path) -> None:
    words = ("plan", trace, "--memory", "40MiB", "--host-memory", "1GiB", "--tiers", "ssd", *QUICK)
    assert b"warning: `--host-memory` has no effect" in here(*words, cwd=tmp_path).stderr
    assert read_plan(tmp_path / "plan.json").budget.host_bytes == 0


def test_explaining_needs_no_output(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("mine")
    words = ("plan", trace, "--memory", "40MiB", "--explain", "layers.5.weight.exp_avg", *QUICK)
    done = here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode()
    assert shown.startswith("tensor 11, layers.5.weight.exp_avg: optimizer_state, 4.00 MiB, 1 use")
    assert "29 aten.op1" in shown
    assert "of the next step" in shown
    assert shown.splitlines()[-1].startswith(("moves in 1 of its 1 idle", "stays: the step fits"))
    assert "no plan was written" in done.stderr.decode()
    assert (tmp_path / "plan.json").read_text() == "mine"
    found = json.loads(here(*words, "--json", cwd=tmp_path).stdout)
    assert found["why"] == shown.splitlines()[-1]
    assert found["intervals"][0]["costs"][0]["tier"] == "ssd"


def test_explaining_and_writing(trace: Path, tmp_path: Path) -> None:
    words = ("plan", trace, "--memory", "40MiB", "--explain", "0", "-o", "p.json", *QUICK)
    assert here(*words, cwd=tmp_path).stdout
    assert read_plan(tmp_path / "p.json").actions


def test_every_reason_has_a_sentence() -> None:
    from test_explain import STEP, planned

    from teraio.planner.explain import explain

    plan = planned(keep=("mask",))
    said = [sentence(explain(STEP, plan, index)) for index in range(len(STEP.tensors))]
    assert all(text.startswith(("moves", "stays: ")) for text in said)
    assert len(set(said)) == 7
    assert (
        sum(text.startswith("moves in 1 of its 1 idle intervals: it relieves ") for text in said)
        == 1
    )
    assert any("`--keep`" in text for text in said)
    assert any(text.endswith("ranks it 2 of 2") for text in said)


@pytest.mark.parametrize("tiers", ["ssd,host", "host,ssd", "ssd, host"])
def test_the_order_of_tiers_says_nothing(tiers: str) -> None:
    made = controls_of(
        tiers=tiers, host_bytes=1, keep=(), never_ssd=(), min_tensor="0", ssd_writes=None
    )
    assert made == Controls(min_tensor_bytes=0)
