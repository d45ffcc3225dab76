"""What works on this machine, found by doing it. No probe raises; each tells what it saw."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from teraio_cli.finding import Finding, tried
from teraio_cli.gpu_probes import probe_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

SOLVER_SECONDS: Final = 60
"""A trial solve takes well under a second; a solver that hangs is ended after this."""


def probe_machine() -> Iterator[Finding]:
    """Run every probe that needs no folder, in a fixed order."""
    yield Finding("python", ok=True, found=platform.python_version())
    yield tried("torch", _torch_version, "needed to profile and run: `pip install 'teraio[train]'`")
    yield tried(
        "storage swap",
        _storage_swap,
        "without it a stray read of a moved tensor is undefined: use torch 2.12 or newer",
    )
    yield tried(
        "storage poison",
        _storage_poison,
        "without it a stray read of a moved tensor ends the process and is not named",
    )
    yield tried("accelerator", _accelerator, "without one, CPU memory serves as the device")
    yield tried("kvikio", _kvikio, "without it SSD transfers go through POSIX calls")
    yield from probe_gpu()
    yield from _solvers()


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _storage_swap() -> str:
    import torch

    ours, theirs = torch.ones(4), torch.zeros(4)
    swap: Any = ours.untyped_storage()
    swap._swap_data_ptr_(theirs.untyped_storage())
    if ours.tolist() != [0.0] * 4 or theirs.tolist() != [1.0] * 4:
        msg = "storages were not swapped"
        raise RuntimeError(msg)
    return "storages swap their memory"


def _storage_poison() -> str:
    import torch

    native: Any = torch._C
    victim = torch.ones(4)
    handle = victim.untyped_storage()._cdata
    native._set_storage_data_ptr_access_error_msg(handle, "moved away")
    try:
        victim.sum()
    except RuntimeError:
        native._clear_storage_data_ptr_access_error_msg(handle)
        return "a poisoned storage refuses to be read and heals"
    msg = "a poisoned storage could be read"
    raise RuntimeError(msg)


def _accelerator() -> str:
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        msg = "none that torch can use"
        raise RuntimeError(msg)
    torch.ones(1, device=device).sum().item()
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    return f"{torch.accelerator.device_count()} x {name}"


def _kvikio() -> str:
    import kvikio

    return str(kvikio.__version__)


def _solvers() -> Iterator[Finding]:
    from teraio.planner.solver import solvers

    names = solvers()
    if not names:
        advice = "`--policy greedy` needs none; HiGHS comes with `pip install highspy`"
        yield Finding("solver", ok=False, found="none", advice=advice)
    for name in names:
        yield tried(f"solver {name}", partial(_solve_with, name), "use another solver")


def _solve_with(name: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "teraio_cli.solver_trial", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOLVER_SECONDS)
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        msg = lines[-1] if lines else f"wrong answer or crash, exit code {done.returncode}"
        raise RuntimeError(msg)
    return "solved a trial problem"
