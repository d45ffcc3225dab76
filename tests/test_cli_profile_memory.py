"""`teraio profile --memory`: a model that does not fit is recorded as if it did."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cli import failed, here
from warm import warm_teraio

from teraio.planner.step import load_step, peak
from teraio.profiler.trace import Trace, read_trace

pytest.importorskip("torch")

TRAIN = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(600, 96), *[nn.Linear(96, 96) for _ in range(9)], nn.GELU(),
                      nn.Linear(96, 600))
model[-1].weight = model[0].weight
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    tokens = torch.randint(600, (40,))
    loss = nn.functional.cross_entropy(model(tokens), tokens.roll(1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), float(loss) == loss.tolist(), flush=True)
torch.save(model.state_dict(), sys.argv[1])
"""
TIMES = ["start_ns", "duration_ns"]
"""What the machine decides."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "train.py").write_text(TRAIN)
    for name in ("usual", "paged"):
        (home / name).mkdir()
    done = warm_teraio(
        "profile", "--all", "-o", "usual.parquet", "train.py", "usual/m.pt", cwd=home
    )
    assert done.returncode == 0
    (home / "usual.out").write_bytes(done.stdout)
    return home


def trace_of(path: Path) -> Trace:
    with path.open("rb") as stream:
        return read_trace(stream)


def record(home: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    words = ("profile", "--all", "-o", "paged.parquet", "--force", *words, "train.py", "paged/m.pt")
    return warm_teraio(*words, cwd=home)


@pytest.mark.parametrize("to_host", [(), ("--host-memory", "300KiB"), ("--host-memory", "1GiB")])
def test_the_trace_is_that_of_a_machine_with_room_enough(
    home: Path, to_host: tuple[str, ...]
) -> None:
    usual = trace_of(home / "usual.parquet")
    needed = peak(load_step(usual))
    done = record(home, "--memory", f"{needed * 55 // 100}B", "--ssd", ".", *to_host)
    assert done.returncode == 0, done.stderr.decode()
    paged = trace_of(home / "paged.parquet")
    assert paged.info.fingerprint == usual.info.fingerprint
    assert paged.info.pinned == usual.info.pinned
    kept = [table.table.drop_columns([*TIMES, "workspace_bytes"]) for table in (usual, paged)]
    assert kept[0].to_pylist() == kept[1].to_pylist()
    assert done.stdout == (home / "usual.out").read_bytes()
    assert (home / "paged/m.pt").read_bytes() == (home / "usual/m.pt").read_bytes()
    said = done.stderr.decode()
    assert "moved" in said
    assert ("host by host-memory" in said) == bool(to_host)
    assert "needed more than --memory" not in said
    assert not list(home.glob(".teraio*"))


def test_where_an_op_needs_more_than_there_is_that_is_said(home: Path) -> None:
    done = record(home, "--memory", "200KiB")
    assert done.returncode == 0, done.stderr.decode()
    assert "ops needed more than --memory; the most was" in done.stderr.decode()
    assert (home / "paged/m.pt").read_bytes() == (home / "usual/m.pt").read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ssd", "."), "no `--memory` is given"),
        (("--host-memory", "1GiB"), "no `--memory` is given"),
        (("--memory", "60%"), "60%"),
        (("--memory", "0"), "0"),
        (("--memory", "1GiB", "--ssd", "nowhere"), "nowhere"),
        (("--memory", "1GiB", "--host-memory", "-1"), "-1"),
    ],
)
def test_bad_values_are_clear_errors(home: Path, words: tuple[str, ...], said: str) -> None:
    done = here("profile", "-o", "no", *words, "train.py", "no.pt", cwd=home)
    assert said in failed(done, 74 if "nowhere" in words else 2)
    assert not (home / "no").exists()
