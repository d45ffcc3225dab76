"""The wheel holds the packages and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("profiler", "planner", "executor", "teraio_cli")
HOMES = ("teraio/profiler", "teraio/planner", "teraio/executor", "teraio_cli")


def _builds_here() -> bool:
    """Tell whether this environment has the setuptools that `pyproject.toml` asks for."""
    try:
        return int(version("setuptools").split(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def _build(source: Path, wheels: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", wheels, source]
    if _builds_here():
        command.append("--no-build-isolation")
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    return wheel


def test_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    # Building leaves files beside the sources, so it is done on a copy.
    source = tmp_path / "source"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    with zipfile.ZipFile(_build(source, tmp_path / "wheels")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        about = [name for name in wheel.namelist() if ".dist-info/" in name]
    expected = {
        str(Path(home) / path.relative_to(ROOT / folder))
        for home, folder in zip(HOMES, FOLDERS, strict=True)
        for path in (ROOT / folder).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert names == expected
    assert any(name.endswith("licenses/LICENSE") for name in about)
