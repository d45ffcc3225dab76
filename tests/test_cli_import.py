"""`teraio import` through the real command."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from cli import failed, here, names_in, teraio
from foreign import CONFIG, TOY, write_run

from teraio.planner.hardware import read_hardware
from teraio.planner.plan_file import read_plan, sha256_of
from teraio.planner.step import load_step
from teraio.profiler.errors import UsageError
from teraio.profiler.trace import read_trace
from teraio_cli.import_ import parse_factor

DATA = Path(__file__).parent / "data"
Ends = Callable[..., str]
BERT = DATA / "g10-bert-256.tar.gz"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "toy", TOY.g10())


@pytest.fixture
def semantics(tmp_path: Path) -> Path:
    path = tmp_path / "semantics.in"
    path.write_text(TOY.semantics())
    return path


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Run `teraio WORDS` in a folder, check how it ends, and return what it said."""
    monkeypatch.chdir(tmp_path)

    def run_here(code: int, *words: str | Path) -> str:
        done = here(*words)
        assert (done.returncode, done.stdout) == (code, b""), done.stderr
        return done.stderr.decode()

    return run_here


def test_g10_is_imported_with_its_hardware_and_plan(tmp_path: Path) -> None:
    done = teraio(
        "import", "g10", BERT, "-o", "t.parquet", "--hardware", "h.json", "--plan", "g10.json",
        cwd=tmp_path,
    )  # fmt: skip
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (0, b""), said
    assert names_in(tmp_path) == ["g10.json", "h.json", "t.parquet"]
    assert "tensors  1463, of which 156 outlive the step, 16.60 GiB\n" in said
    assert "step     7.285 s ideal\npeak     47.76 GiB\n" in said
    assert said.endswith(
        "\n\nnext: teraio plan t.parquet --hardware h.json --memory 40GiB --host-memory 128GiB"
        " -o plan.json\n"
    )
    assert read_trace(tmp_path / "t.parquet").info.steps == 1
    assert read_hardware(tmp_path / "h.json").ssd.latency_ns == 16_000
    plan = read_plan(tmp_path / "g10.json")
    assert plan.trace.sha256 == sha256_of(tmp_path / "t.parquet")
    assert plan.budget.memory_bytes == 40 << 30
    assert plan.policy.name == "g10 (its own plan)"


def test_the_memory_of_g10s_plan_can_be_given(tmp_path: Path) -> None:
    words = ("import", "g10", BERT, "-o", "-", "--plan", "g10.json", "--memory")
    done = here(*words, "45GiB", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_plan(tmp_path / "g10.json").budget.memory_bytes == 45 << 30
    done = here("import", "g10", BERT, "--plan", "no.json", "--memory", "20GiB", cwd=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 69
    assert said.startswith("wrote `trace.parquet`, and no plan\nerror: ")
    assert names_in(tmp_path) == ["g10.json", "trace.parquet"]


def test_pipes_carry_the_trace_and_nothing_else(tmp_path: Path, semantics: Path, run: Path) -> None:
    text = gzip.compress(semantics.read_bytes())
    piped = teraio("import", "teraio", "-", "-o", "-", stdin=text)
    assert piped.returncode == 0, piped.stderr
    assert piped.stderr.decode().endswith("\nnext: teraio plan TRACE --memory 60% -o plan.json\n")
    shown = teraio("inspect", "-", "--json", stdin=piped.stdout)
    assert json.loads(shown.stdout)["ops"] == len(TOY.kernels)
    direct = teraio("import", "teraio", semantics, "-o", "-")
    assert direct.stdout == piped.stdout
    packed = teraio("import", "g10", "-", "-o", "-", stdin=BERT.read_bytes())
    assert json.loads(teraio("inspect", "-", "--json", stdin=packed.stdout).stdout)["ops"] == 1369
    assert names_in(tmp_path) == ["semantics.in", "toy", "toy.config"]


def test_times_are_rescaled(ends: Ends, semantics: Path) -> None:
    def period(*words: str) -> int:
        ends(0, "import", "teraio", semantics, "--force", *words)
        return load_step(read_trace(Path("trace.parquet"))).period_ns

    assert period() == 4220
    assert period("--rescale", "1.5ms") == 1_500_000
    assert period("--speed-up", "2.5") == 1688


def test_tensors_that_are_never_on_the_device_are_reported(ends: Ends, semantics: Path) -> None:
    semantics.write_text(TOY.semantics().replace("7|2048|1:1:0", "7|2048|1:0:-1"))
    said = ends(0, "import", "teraio", semantics)
    assert "left out 1 tensors that are never on the device\n" in said


def test_an_imported_trace_is_planned_for(tmp_path: Path) -> None:
    done = here("import", "g10", BERT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = here("plan", "trace.parquet", "--memory", "90%", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "this plan cannot be run" in done.stderr.decode()


def test_outputs_are_kept_without_force(
    ends: Ends, tmp_path: Path, semantics: Path, run: Path
) -> None:
    Path("trace.parquet").write_text("mine")
    Path("h.json").write_text("mine")
    ends(73, "import", "teraio", semantics)
    ends(73, "import", "g10", run)
    words = ("import", "g10", run, "-o", "other.parquet", "--hardware", "h.json")
    ends(73, *words)
    assert Path("trace.parquet").read_text() == "mine"
    assert "other.parquet" not in names_in(tmp_path)
    ends(0, *words, "--force")
    assert read_hardware(Path("h.json")).ssd.read_bytes_per_s == 3_200_000_000


def test_a_broken_input_writes_nothing(tmp_path: Path, semantics: Path, run: Path) -> None:
    semantics.write_text(TOY.semantics().replace("1|8192|", "1|x|"))
    said = failed(here("import", "teraio", semantics, cwd=tmp_path), 65)
    assert said.startswith(f"error: `{semantics}`, line 4: expected `TENSOR|BYTES|")
    said = failed(teraio("import", "teraio", "-", stdin=b"x", cwd=tmp_path), 65)
    assert said.startswith("error: `stdin`, line 1: expected the device types")
    tensors = run / "statistics" / "tensors.config"
    tensors.write_text("?\n" + tensors.read_text())
    said = failed(here("import", "g10", run, cwd=tmp_path), 65)
    assert said.startswith(f"error: `{tensors}`, line 1: expected `tensor0 Is weight")
    assert names_in(tmp_path) == ["semantics.in", "toy", "toy.config"]


def test_no_output_is_written_if_one_cannot_be_made(ends: Ends, tmp_path: Path, run: Path) -> None:
    words = ("import", "g10", run, "-o", "t.parquet")
    said = ends(66, *words, "--plan", "p.json")
    assert "has no `prefetch_guide.config`" in said
    (tmp_path / "toy.config").unlink()
    said = ends(66, *words, "--hardware", "h.json")
    assert "no configuration beside the G10 run" in said
    assert names_in(tmp_path) == ["toy"]
    said = ends(0, *words)
    assert said.endswith("\nnext: teraio plan t.parquet --memory 60% -o plan.json\n")


def test_missing_inputs(ends: Ends, tmp_path: Path) -> None:
    assert "no such file or folder" in ends(66, "import", "g10", "none")
    assert "no such file" in ends(66, "import", "teraio", "none")
    assert "is a folder" in ends(65, "import", "teraio", tmp_path)
    assert "no G10 run" in ends(65, "import", "g10", tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("teraio", "x", "--rescale", "1s", "--speed-up", "2"), "exclude each other"),
        (("teraio", "semantics.in", "--rescale", "1"), "not a time: `1`"),
        (("teraio", "semantics.in", "--rescale", "0s"), "more than zero"),
        (("teraio", "semantics.in", "--speed-up", "1/0"), "not a factor: `1/0`"),
        (("teraio", "semantics.in", "--speed-up", "100000"), "the scaled step would take 0 ns"),
        (("g10", "x", "--memory", "1GiB"), "`--memory` is for G10's own plan"),
        (("g10", "x", "-o", "a", "--plan", "./a"), "two outputs are to go to one place"),
        (("g10", "x", "-o", "-", "--plan", "-"), "two outputs are to go to one place"),
        (("nsys", "x"), "nsys"),
    ],
)
def test_usage_errors(
    words: tuple[str, ...], said: str, ends: Ends, tmp_path: Path, semantics: Path
) -> None:
    assert said in ends(2, "import", *words)
    assert names_in(tmp_path) == ["semantics.in"]


def test_factors() -> None:
    assert parse_factor("2.5") == Fraction(5, 2)
    for text in ("", "0", "0.0", "-1", "x", "1e9", "nan", "1/3", "9" * 13):
        with pytest.raises(UsageError):
            parse_factor(text)


def test_the_configuration_gives_the_next_command(ends: Ends, tmp_path: Path, run: Path) -> None:
    (tmp_path / "toy.config").write_text(CONFIG.replace("size_GB      40", "size_GB      0.0001"))
    assert "--memory 107374 --host-memory 128GiB" in ends(0, "import", "g10", run)
