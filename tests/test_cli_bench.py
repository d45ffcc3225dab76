"""`teraio bench` feeds `teraio plan --hardware`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from cli import failed, names_in, teraio

from teraio.executor import bandwidth
from teraio.planner.hardware import read_hardware
from teraio.profiler.errors import OutputExistsError
from teraio_cli.bench import bench

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = partial(bandwidth.measure, total_bytes=4 << 20)
    monkeypatch.setattr(bandwidth, "measure", quick)


@pytest.mark.usefixtures("_quick")
def test_result_is_a_hardware_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ssd = tmp_path / "ssd"
    ssd.mkdir()
    output = tmp_path / "hardware.json"
    bench([str(ssd)], str(output))
    hardware = read_hardware(output)
    assert hardware.source["ssd"].startswith("measured")
    out, said = capfd.readouterr()
    assert out == ""
    assert said.startswith("ssd read   ")
    assert f"--hardware {output}" in said.splitlines()[-1]
    assert names_in(ssd) == []


@pytest.mark.usefixtures("_quick")
def test_result_goes_to_stdout_without_an_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bench([str(tmp_path)])
    file = tmp_path / "hardware.json"
    file.write_text(capfd.readouterr().out)
    assert read_hardware(file).ssd.read_bytes_per_s > 0


def test_existing_output_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "measure", lambda _folders: pytest.fail("measured"))
    output = tmp_path / "hardware.json"
    output.touch()
    with pytest.raises(OutputExistsError):
        bench([str(tmp_path)], str(output))


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "none" in failed(teraio("bench", tmp_path / "none"), 74)
