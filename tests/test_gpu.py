"""The executor on a real GPU. Skipped where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from teraio.executor.engine import TransferEngine
from teraio.executor.stores.base import Store
from teraio.executor.stores.emulated import EmulatedDrive, EmulatedStore
from teraio.executor.stores.host import HostStore
from teraio.executor.stores.posix import PosixStore
from teraio.executor.transfer import TransferLabel
from teraio.planner.step import load_step, peak
from teraio.profiler.errors import StorageError
from teraio.profiler.trace import read_trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

MIB = 1 << 20
LABEL = TransferLabel(tensor=1, name="", step=0, op=0)
SCRIPT = Path(__file__).parent / "gpu_train.py"
STEPS = 5
ENVIRONMENT = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture
def opened() -> Iterator[Any]:
    from teraio.executor.cuda import CudaDevice

    device = CudaDevice()
    yield device
    device.close()


def store_of(kind: str, device: Any, folder: Path, stack: ExitStack, **options: Any) -> Store:
    store: Store
    if kind == "host":
        store = HostStore(64 * MIB, reach=device.reach, **options)
    elif kind == "emulated":
        drive = EmulatedDrive(2_000_000_000, 1_000_000_000, 50_000)
        store = EmulatedStore(drive, 64 * MIB, reach=device.reach, **options)
    elif kind == "posix":
        store = PosixStore([folder], 64 * MIB, reach=device.reach, **options)
    else:
        pytest.importorskip("kvikio")
        from teraio.executor.stores.kvikio import KvikioStore

        store = KvikioStore([folder, folder], 64 * MIB, reach=device.reach, **options)
    stack.callback(store.close)
    return store


@pytest.mark.parametrize("checksums", [False, True], ids=["", "checksums"])
@pytest.mark.parametrize("kind", ["host", "posix", "kvikio", "emulated"])
def test_bytes_come_back(kind: str, checksums: bool, opened: Any, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = store_of(kind, opened, tmp_path, stack, checksums=checksums)
        movers = opened.movers({store.tier: store})
        mover = movers[store.tier]
        stack.callback(mover.close)
        for nbytes in (1, 511, 512, 4095, 4096, 4097, 5 * MIB + 3, 20 * MIB):
            sent = torch.randint(256, (nbytes,), dtype=torch.uint8, device="cuda")
            kept = sent.clone()
            extent = store.allocate(nbytes)
            write = mover.write(store, extent, sent.data_ptr(), nbytes, LABEL, after=opened.now())
            write.wait()
            sent.zero_()
            received = torch.empty_like(sent)
            read = mover.read(store, extent, received.data_ptr(), nbytes, LABEL, after=opened.now())
            read.wait()
            assert torch.equal(received, kept)
            store.free(extent)


def test_a_write_waits_for_the_op_that_makes_its_bytes(opened: Any, tmp_path: Path) -> None:
    for kind in ("host", "posix"):
        with ExitStack() as stack:
            store = store_of(kind, opened, tmp_path, stack)
            mover = opened.movers({store.tier: store})[store.tier]
            stack.callback(mover.close)
            made = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            torch.cuda._sleep(200_000_000)
            made.fill_(7)
            extent = store.allocate(made.nbytes)
            write = mover.write(
                store, extent, made.data_ptr(), made.nbytes, LABEL, after=opened.now()
            )
            write.wait()
            made.zero_()  # only after the write, in the stream
            mover.read(
                store, extent, made.data_ptr(), made.nbytes, LABEL, after=opened.now()
            ).wait()
            assert (made == 7).all()


def test_pinned_memory_that_is_not_to_be_had(opened: Any) -> None:
    with pytest.raises(StorageError, match="cannot pin"):
        opened.reach.pin(4096, 1 << 60)


def test_an_engine_on_a_gpu_counts_bytes(opened: Any, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = store_of("kvikio", opened, tmp_path, stack)
        engine = TransferEngine()
        stack.callback(engine.close)
        extent = store.allocate(MIB)
        os.truncate(f"/proc/self/fd/{store._files[0].fd}", 0)  # type: ignore[attr-defined]
        memory = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(StorageError, match=r"bytes|read"):
            engine.read(store, extent, memory.data_ptr(), MIB, LABEL).wait()


def run(*words: str | Path, folder: Path, expect: int = 0) -> str:
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def teraio(*words: str | Path, folder: Path, expect: int = 0) -> str:
    return run("-m", "teraio_cli", *words, folder=folder, expect=expect)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    run(SCRIPT, "plain.json", str(STEPS), folder=folder)
    teraio("profile", "-o", "trace.parquet", SCRIPT, "unused.json", "9", folder=folder)
    return folder


def plan_and_run(folder: Path, name: str, plan: tuple[str, ...], how: tuple[str, ...]) -> Any:
    teraio("plan", "trace.parquet", "-o", f"{name}-plan.json", *plan, folder=folder)
    said = teraio(
        "run", f"{name}-plan.json", *how, "--report", f"{name}.json", SCRIPT,
        f"{name}-out.json", str(STEPS), folder=folder,
    )  # fmt: skip
    print(said)
    report = json.loads((folder / f"{name}.json").read_text())
    same = json.loads((folder / f"{name}-out.json").read_text())
    assert same == json.loads((folder / "plain.json").read_text())
    return report


WAYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "posix": ((), ("--io", "posix")),
    "auto": ((), ("--io", "auto")),
    "host": (("--host-memory", "4GiB", "--tiers", "host"), ()),
    "both": (("--host-memory", "200MiB"), ()),
    "emulated": ((), ("--emulate-ssd", "6.7GB/s,6.5GB/s")),
    "enforced": (("--host-memory", "4GiB", "--tiers", "host"), ("--enforce",)),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_training_is_the_same_to_the_bit(prepared: Path, way: str) -> None:
    plan, how = WAYS[way]
    report = plan_and_run(prepared, way, ("--memory", "60%", *plan), how)
    print(json.dumps({k: v for k, v in report.items() if k != "divergences"}))
    assert report["divergences"] == []
    assert sum(report["offloaded_bytes"].values()) > 0
    assert report["executed_actions"] == report["planned_actions"] > 0
    assert report["over_budget_ops"] == 0
    assert report["allocator"]["reserved_bytes"] > 0
    if way == "enforced":
        assert report["allocator"]["reserved_bytes"] <= report["budget_bytes"]


def test_gds_that_is_not_there_is_refused(prepared: Path) -> None:
    teraio("plan", "trace.parquet", "-o", "gds-plan.json", "--memory", "60%", folder=prepared)
    said = teraio(
        "run", "gds-plan.json", "--io", "gds", SCRIPT, "x.json", "2", folder=prepared, expect=74
    )
    assert "GPUDirect Storage is not to be had" in said or "KvikIO" in said


def limited(folder: Path) -> Path:
    """Write a script that holds the allocator to so many bytes, and then trains."""
    script = folder / "limited.py"
    script.write_text(
        "import runpy, sys, torch\n"
        "limit = int(sys.argv.pop(1))\n"
        "total = torch.cuda.get_device_properties(0).total_memory\n"
        "torch.cuda.set_per_process_memory_fraction(limit / total)\n"
        f"sys.argv[0] = {str(SCRIPT)!r}\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    return script


def last_step(path: Path) -> list[tuple[Any, ...]]:
    """Return what each access of a trace's last step is of, storages by when they are met.

    Without those that it only finds there: the script keeps one more with each step.
    """
    with path.open("rb") as stream:
        trace = read_trace(stream)
    met: dict[int | None, int] = {}
    keys = ("op", "op_name", "phase", "module", "access", "nbytes", "kind", "name", "alloc_op",
            "free_op")  # fmt: skip
    return [
        (*(row[key] for key in keys), met.setdefault(row["tensor"], len(met)))
        for row in trace.table.to_pylist()
        if row["step"] == trace.last_step and row["access"] != "none"
    ]


def test_a_model_that_does_not_fit_is_profiled_as_if_it_did(prepared: Path) -> None:
    usual = last_step(prepared / "trace.parquet")
    with (prepared / "trace.parquet").open("rb") as stream:
        needed = peak(load_step(read_trace(stream)))
    said = teraio(
        "profile", "-o", "paged.parquet", "--memory", f"{needed * 6 // 10}B", "--host-memory",
        "4GiB", "--ssd", ".", limited(prepared), str(needed * 85 // 100), "unused.json", "9",
        folder=prepared,
    )  # fmt: skip
    print(said)
    assert "moved" in said
    assert last_step(prepared / "paged.parquet") == usual


def test_out_of_memory_in_spite_of_the_plan(prepared: Path) -> None:
    """Much less than the plan counts on: what does not fit is evicted, and the run goes on."""
    teraio(
        "plan", "trace.parquet", "-o", "oom-plan.json", "--memory", "95%",
        "--host-memory", "8GiB", "--tiers", "host", folder=prepared,
    )  # fmt: skip
    budget = json.loads((prepared / "oom-plan.json").read_text())["budget"]["memory_bytes"]
    said = teraio(
        "run", "oom-plan.json", "--report", "oom.json", limited(prepared), str(budget * 3 // 4),
        "oom-out.json", str(STEPS), folder=prepared,
    )  # fmt: skip
    report = json.loads((prepared / "oom.json").read_text())
    print(said, report["out_of_memory"], report["allocator"]["reserved_bytes"], budget)
    same = json.loads((prepared / "oom-out.json").read_text())
    assert same == json.loads((prepared / "plain.json").read_text())
    assert report["out_of_memory"] > 0
