"""Pictures of comparisons and sweeps: what is in them, and the same file every time."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
from cli import teraio
from traces import MIB, training_trace

from teraio.planner.compare import Comparison, compare
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.points import Axes
from teraio.planner.sweep import Sweep, sweep
from teraio.profiler.errors import (
    InputMissingError,
    OutputExistsError,
    PackageMissingError,
    UsageError,
)
from teraio.profiler.trace import write_trace
from teraio_cli.pictures import FORMATS, draw_comparison, draw_sweep, require_picture

SLOW = with_rates(ASSUMED, ssd_read=10**9, ssd_write=10**9)
HEADS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@cache
def compared() -> Comparison:
    return compare(
        training_trace(4), sha256="0" * 64, memory_bytes=24 * MIB, hardware=SLOW,
        policies=("lru", "g10", "ssdtrain"),
    )  # fmt: skip


@cache
def swept() -> Sweep:
    axes = Axes((MIB, 16 * MIB, 30 * MIB), drives=(1, 2))
    return sweep(training_trace(4), axes, sha256="0" * 64, hardware=SLOW, policy="g10")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("what", ["comparison", "sweep"])
def test_the_same_data_gives_the_same_file(kind: str, what: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"{name}.{kind}" for name in ("one", "two")]
    for file in files:
        if what == "sweep":
            draw_sweep(swept(), str(file), force=False)
        else:
            draw_comparison(compared(), str(file), force=False)
    one, two = (file.read_bytes() for file in files)
    assert one.startswith(HEADS[kind])
    assert one == two


def test_what_a_comparison_shows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_comparison(compared(), str(tmp_path / "c.SVG"), force=False)
    shown = (tmp_path / "c.SVG").read_text()
    for text in ("step time / ideal step time", "waits: memory", "lru", "g10", "ideal step"):
        assert f">{text}<" in shown
    assert ">lower bound, " in shown
    assert "24.00 MiB of device memory" in shown
    assert ">ssdtrain<" not in shown, "it has no plan"


def test_what_a_sweep_shows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_sweep(swept(), str(tmp_path / "s.svg"), force=False)
    shown = (tmp_path / "s.svg").read_text()
    for text in ("device memory, MiB", "step time, s", "1 SSD", "2 SSDs", "lower bound"):
        assert f">{text}<" in shown
    assert "2 of 6 points do not fit" in shown


def test_only_where_it_can_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "c.png").touch()
    with pytest.raises(OutputExistsError):
        require_picture(str(tmp_path / "c.png"), force=False)
    require_picture(str(tmp_path / "c.png"), force=True)
    with pytest.raises(InputMissingError):
        require_picture(str(tmp_path / "none" / "c.png"), force=False)


@pytest.mark.parametrize("name", ["c.gif", "c", "png", "-", ".png"])
def test_unknown_endings(name: str) -> None:
    with pytest.raises(UsageError, match="the ending says in which format") as raised:
        require_picture(name, force=False)
    assert ".png, .svg, .pdf" in raised.value.hint


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(
        sys, "modules", {k: m for k, m in sys.modules.items() if "matplot" not in k}
    )
    require_picture(None, force=False)
    with pytest.raises(PackageMissingError, match="needs matplotlib") as raised:
        require_picture(str(tmp_path / "c.png"), force=False)
    assert raised.value.hint == "pip install 'teraio[plot]'"
    assert raised.value.exit_code == 69


def test_the_command_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_trace(training_trace(4), tmp_path / "t.parquet")
    words = ("--memory", "50%", "--ssd-read", "1GB/s", "--policies", "lru", "--plot", "c.png")
    done = teraio("compare", "t.parquet", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.png").read_bytes().startswith(HEADS["png"])
    words = ("--memory", "40%,50%", "--policy", "lru", "--plot", "s.svg")
    done = teraio("sweep", "t.parquet", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "predicted step" in (tmp_path / "s.svg").read_text()
