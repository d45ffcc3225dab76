"""The sample traces are what their README says, and can be planned for without torch."""

from fractions import Fraction
from pathlib import Path

import pytest

from teraio.planner.check import check_plan
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.make import make_plan
from teraio.planner.minimum import least_memory
from teraio.planner.plan import Controls, Offload
from teraio.planner.plan_file import sha256_of
from teraio.planner.simulate import simulate
from teraio.planner.step import idle_intervals, load_step, peak
from teraio.profiler.importers.g10 import read_g10
from teraio.profiler.importers.g10_files import find_g10
from teraio.profiler.importers.teraio import read_semantics, trace_of
from teraio.profiler.trace import fingerprint, read_trace

FOLDER = Path(__file__).parent.parent / "sample_traces"
NAMES = ("llama", "gpt2", "convnet", "accumulate", "llama-h200")
IMPORTED = {
    "g10-bert-256": ("47.760", 7_285_465_648, 1463),
    "g10-vit-1024": ("45.932", 3_266_145_801, 1563),
    "g10-senet154-256": ("86.931", 129_431_252_088, 4405),
    "teraio-llama": ("130.807", 20_249_081_042, 4798),
}
"""Peak in GiB, length of the step in ns, tensors. 8,742,558,777, 3,919,374,961 and
155,317,502,505 cycles at 1.2 GHz are the ideal steps that G10 publishes."""
MIN_TENSOR = 1 << 20


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest) -> Path:
    return FOLDER / f"{request.param}.parquet"


def test_every_trace_is_listed_and_small() -> None:
    listed = (FOLDER / "README.md").read_text()
    found = sorted(file.stem for file in FOLDER.glob("*.parquet"))
    assert found == sorted([*NAMES, *IMPORTED])
    assert all(f"teraio profile -o sample_traces/{name}.parquet" in listed for name in NAMES)
    assert all(f"-o sample_traces/{name}.parquet`" in listed for name in IMPORTED)
    assert all(file.stat().st_size < 2 << 20 for file in FOLDER.glob("*.parquet"))


def test_two_steady_steps_of_one_program(path: Path) -> None:
    trace = read_trace(path)
    assert trace.info.steps == 2
    rows = trace.table.to_pylist()
    names = [{row["op"]: row["op_name"] for row in rows if row["step"] == step} for step in (0, 1)]
    assert names[0] == names[1]
    words = [names[1][op] for op in range(len(names[1]))]
    assert fingerprint(words, trace.info.signatures) == trace.info.fingerprint


def test_what_a_training_step_is_made_of(path: Path) -> None:
    step = load_step(read_trace(path))
    kinds = {tensor.kind for tensor in step.tensors}
    assert {"parameter", "gradient", "optimizer_state", "activation", "input"} <= kinds
    assert {op.phase for op in step.ops} >= {"forward", "backward", "optimizer"}
    parameters = [t for t in step.tensors if t.kind == "parameter" and t.uses]
    assert all(tensor.persistent and tensor.name for tensor in parameters)
    written = [t for t in parameters if any(use.writes for use in t.uses)]
    assert len(written) == len(parameters)


def test_optimizer_states_are_not_all_in_use_at_once(path: Path) -> None:
    step = load_step(read_trace(path))
    states = [t for t in step.tensors if t.kind == "optimizer_state" and t.size >= MIN_TENSOR]
    in_use = [0] * len(step.ops)
    for tensor in states:
        for op in {use.op for use in tensor.uses}:
            in_use[op] += tensor.size
    assert max(in_use) < sum(tensor.size for tensor in states) / 2


@pytest.mark.parametrize("share", [0.6, 0.8])
def test_planned_checked_and_simulated(path: Path, share: float) -> None:
    trace = read_trace(path)
    step = load_step(trace)
    budget = int(peak(step) * share)
    plan = make_plan(
        trace,
        sha256=sha256_of(path),
        memory_bytes=budget,
        hardware=ASSUMED,
        controls=Controls(min_tensor_bytes=MIN_TENSOR),
    )
    check_plan(step, plan)
    assert any(isinstance(action, Offload) for action in plan.actions)
    assert simulate(step, plan).peak_bytes <= budget
    assert plan.prediction.step_ns >= plan.prediction.lower_bound_ns >= plan.prediction.ideal_ns


def test_the_least_memory_is_far_below_the_peak(path: Path) -> None:
    step = load_step(read_trace(path))
    assert least_memory(step, idle_intervals(step, MIN_TENSOR)).nbytes < 0.6 * peak(step)


@pytest.mark.parametrize("name", IMPORTED)
def test_imported_traces_have_the_published_peak_and_ideal(name: str) -> None:
    trace = read_trace(FOLDER / f"{name}.parquet")
    step = load_step(trace)
    figures = (f"{peak(step) / (1 << 30):.3f}", step.period_ns, len(step.tensors))
    assert figures == IMPORTED[name]
    assert trace.info.fingerprint == ""
    assert {tensor.kind for tensor in step.tensors} == {"activation", "other"}


@pytest.mark.parametrize("name", IMPORTED)
def test_imported_traces_are_planned_for(name: str) -> None:
    trace = read_trace(FOLDER / f"{name}.parquet")
    budget = peak(load_step(trace)) * 9 // 10
    plan = make_plan(trace, sha256="0" * 64, memory_bytes=budget, hardware=ASSUMED, policy="greedy")
    assert plan.actions
    assert plan.prediction.peak_bytes <= budget


@pytest.mark.parametrize(
    ("name", "most"),
    [("g10-bert-256", 1.003), ("g10-vit-1024", 1.02), ("g10-senet154-256", 1.0003)],
)
def test_on_g10s_hardware_steps_take_hardly_more_than_the_ideal(name: str, most: float) -> None:
    """G10 publishes 1.0035, 1.358 and 1.0002 for these."""
    trace = read_trace(FOLDER / f"{name}.parquet")
    channels = with_rates(
        ASSUMED, ssd_read=3_200_000_000, ssd_write=3_200_000_000, host_link=15_754_000_000
    )
    plan = make_plan(
        trace,
        sha256="0" * 64,
        memory_bytes=40 << 30,
        host_bytes=128 << 30,
        hardware=channels,
    )
    assert plan.actions
    assert plan.prediction.step_ns <= most * plan.prediction.ideal_ns


def test_imported_traces_are_what_the_importers_give() -> None:
    data = Path(__file__).parent / "data"
    bert = read_g10(find_g10(data / "g10-bert-256.tar.gz"))
    assert bert.table == read_trace(FOLDER / "g10-bert-256.parquet").table.unify_dictionaries()
    with (data / "teraio-llama.semantics.in.gz").open("rb") as stream:
        llama = trace_of(read_semantics(stream, name="llama"), speed_up=Fraction(20))
    assert llama.table == read_trace(FOLDER / "teraio-llama.parquet").table.unify_dictionaries()
