"""What GPUDirect Storage and pinned memory need of a machine with an NVIDIA GPU."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from teraio_cli.finding import tried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from teraio_cli.finding import Finding

NVIDIA: Final = Path("/proc/driver/nvidia")
NVIDIA_FS: Final = Path("/proc/driver/nvidia-fs")
UDEV: Final = Path("/run/udev/data")

LOCKED_BYTES: Final = 64 << 20
"""Memory to lock for a trial: as much as transfers have under way."""

_MIB: Final = 1 << 20
_BAR1: Final = re.compile(r"BAR1 Memory Usage\s+Total\s+: (\d+ \w+)")


def probe_gpu() -> Iterator[Finding]:
    """Run every probe, in a fixed order; none where there is no NVIDIA driver."""
    if not NVIDIA.exists():
        return
    yield tried("cuda driver", _driver, "torch, kvikio and cuFile need it: install NVIDIA's driver")
    yield tried("BAR1", _bar1, "GPUDirect Storage maps the GPU's memory through it")
    yield tried(
        "libcufile", _libcufile, "GPUDirect Storage needs it: it comes with the CUDA toolkit"
    )
    yield tried(
        "nvidia-fs",
        _nvidia_fs,
        "without this kernel module cuFile copies through host memory: `io_path` says so",
    )
    yield tried(
        "udev",
        _udev,
        "cuFile and kvikio look drives up there: mount /run/udev into the container",
    )
    yield tried(
        "locked memory", _locked, "pinned memory may be refused: raise `ulimit -l`, or memlock"
    )


def unknown_to_cufile(folder: str) -> str:
    """Return what keeps cuFile from knowing the drive of a folder, and what to do.

    Empty if nothing does, or there is no NVIDIA driver. Raises OSError if there is no such folder.
    """
    if not NVIDIA.exists():
        return ""
    device = Path(folder).stat().st_dev
    record = UDEV / f"b{os.major(device)}:{os.minor(device)}"
    try:
        known = "ID_FS_TYPE=" in record.read_text()
    except OSError:
        known = False
    if known:
        return ""
    return f"cuFile does not know this drive: `{record}` names no file system; mount /run/udev"


def bar1_size(memory: str) -> str:
    """Return the size of BAR1 in the text of `nvidia-smi -q -d MEMORY`; raises ValueError."""
    found = _BAR1.search(memory)
    if found is None:
        msg = "nvidia-smi names no BAR1"
        raise ValueError(msg)
    return found[1]


def _driver() -> str:
    library = ctypes.CDLL("libcuda.so.1")
    status = library.cuInit(0)
    if status:
        msg = f"cuInit returned {status}"
        raise RuntimeError(msg)
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    major, rest = divmod(version.value, 1000)
    return f"for CUDA {major}.{rest // 10}"


def _bar1() -> str:
    command = ["nvidia-smi", "-q", "-d", "MEMORY"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return bar1_size(done.stdout)


def _libcufile() -> str:
    library = ctypes.CDLL("libcufile.so.0")
    return "loaded" if library.cuFileDriverOpen else ""


def _nvidia_fs() -> str:
    return (NVIDIA_FS / "version").read_text().splitlines()[0]


def _udev() -> str:
    return f"{len(list(UDEV.iterdir()))} records in {UDEV}"


def _locked() -> str:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    named = "no limit" if limit == resource.RLIM_INFINITY else f"limit {limit // _MIB} MiB"
    library = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, LOCKED_BYTES) as memory:
        byte = ctypes.c_char.from_buffer(memory)
        address = ctypes.c_void_p(ctypes.addressof(byte))
        status = library.mlock(address, ctypes.c_size_t(LOCKED_BYTES))
        del byte
    if status:
        cause = os.strerror(ctypes.get_errno())
        msg = f"{LOCKED_BYTES // _MIB} MiB cannot be locked: {cause}; {named}"
        raise OSError(msg)
    return f"{LOCKED_BYTES // _MIB} MiB locked; {named}"
