"""`teraio doctor` and its probes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from cli import failed, here, names_in, teraio

from teraio.planner import solver
from teraio_cli import finding, folder_probe, gpu_probes, probes
from teraio_cli.folder_probe import mount_of, probe_folder

MOUNTS = """\
25 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
31 25 0:27 / /dev/shm rw,nosuid master:3 - tmpfs tmpfs rw,size=1024k
40 25 259:0 / /mnt/fast\\040disk rw - xfs /dev/nvme0n1 rw,noquota
41 40 259:1 / /mnt/fast\\040disk rw - ext4 /dev/nvme1n1 rw,data=ordered
"""


def test_doctor_tries_a_folder_and_leaves_nothing(tmp_path: Path) -> None:
    done = teraio("doctor", "--json", tmp_path)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    names = [finding["name"] for finding in report["machine"]]
    fixed = ["python", "torch", "storage swap", "storage poison", "accelerator", "kvikio"]
    assert names[: len(fixed)] == fixed
    assert all(f["ok"] or f["advice"] for f in report["machine"])
    (folder,) = report["folders"]
    assert folder["ok"]
    assert folder["file_system"]
    assert folder["free_bytes"] > 0
    assert names_in(tmp_path) == []


def test_doctor_fails_only_for_a_folder_that_was_named(tmp_path: Path) -> None:
    done = here("doctor", tmp_path, tmp_path / "none")
    assert done.returncode == 74
    rows = [line.split() for line in done.stdout.decode().splitlines()]
    states = {row[0]: row[1] for row in rows if len(row) > 1}
    assert states[str(tmp_path)] == "ok"
    assert states[str(tmp_path / "none")] == "unusable"
    assert "Traceback" not in done.stderr.decode()
    usable = here("doctor", tmp_path)
    assert usable.returncode == 0
    assert usable.stderr.decode() == f"\nnext: teraio bench {tmp_path} -o hardware.json\n"


def test_unusable_folders(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert probe_folder(str(file)).found == "Not a directory"
    assert not probe_folder("/proc").ok


def test_transfer_that_stops_short_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda _fd, _buffers, _offset: 512)
    folder = probe_folder(str(tmp_path))
    assert not folder.ok
    assert folder.found == "only 512 of 4096 bytes were transferred"
    assert names_in(tmp_path) == []


def test_bytes_that_change_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", lambda _fd, buffers, _offset: min(4096, len(buffers[0])))
    folder = probe_folder(str(tmp_path))
    assert not folder.ok
    assert folder.found == "the bytes read back are not those written"


def test_file_system_without_direct_io_is_used_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    folder = probe_folder(str(tmp_path))
    assert folder.ok
    assert not folder.direct
    assert "page cache" in folder.found
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", ("ext4", "rw,discard")),
        ("/home/me", ("ext4", "rw,discard")),
        ("/dev/shm/x", ("tmpfs", "rw,size=1024k")),
        ("/dev/shmx", ("ext4", "rw,discard")),
        ("/mnt/fast disk/x", ("ext4", "rw,data=ordered")),
    ],
)
def test_mount_of(path: str, found: tuple[str, str]) -> None:
    assert mount_of(Path(path), MOUNTS) == found


def test_memory_is_said_to_be_no_ssd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS.replace("ext4", "tmpfs"))
    monkeypatch.setattr(folder_probe, "MOUNT_TABLE", table)
    folder = probe_folder(str(tmp_path))
    assert folder.ok
    assert "memory, not an SSD" in folder.advice


def test_probe_that_raises_is_a_finding() -> None:
    def broken() -> str:
        msg = "first line\nsecond line"
        raise OSError(msg)

    told = finding.tried("thing", broken, "do this")
    assert told == finding.Finding("thing", False, "first line", "do this")


def test_unknown_solver_is_a_finding_and_not_a_crash() -> None:
    with pytest.raises(RuntimeError):
        probes._solve_with("NO_SUCH")


def test_doctor_says_so_when_no_solver_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_module", lambda name: None)
    (told,) = probes._solvers()
    assert not told.ok
    assert "greedy" in told.advice


BAR1 = """\
    FB Memory Usage
        Total                             : 143771 MiB
        Used                              : 0 MiB
    BAR1 Memory Usage
        Total                             : 262144 MiB
        Used                              : 1 MiB
    Conf Compute Protected Memory Usage
        Total                             : 0 MiB
"""


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose kernel has NVIDIA's driver, as far as the probes can see."""
    for name, path in (("NVIDIA", "nvidia"), ("NVIDIA_FS", "nvidia-fs"), ("UDEV", "udev")):
        (tmp_path / path).mkdir()
        monkeypatch.setattr(gpu_probes, name, tmp_path / path)
    return tmp_path


def test_without_nvidias_driver_there_is_nothing_to_say(tmp_path: Path) -> None:
    if not gpu_probes.NVIDIA.exists():
        assert list(gpu_probes.probe_gpu()) == []
        assert gpu_probes.unknown_to_cufile(str(tmp_path)) == ""


def test_what_gds_needs_is_tried_one_by_one(nvidia: Path) -> None:
    told = {found.name: found for found in gpu_probes.probe_gpu()}
    assert list(told) == [
        "cuda driver", "BAR1", "libcufile", "nvidia-fs", "udev", "locked memory"
    ]  # fmt: skip
    assert all(found.ok or found.advice for found in told.values())
    assert not told["nvidia-fs"].ok
    assert "copies through host memory" in told["nvidia-fs"].advice
    (nvidia / "nvidia-fs" / "version").write_text("version: 2.17\nmore\n")
    (nvidia / "udev" / "b8:0").write_text("E:ID_FS_TYPE=ext4\n")
    told = {found.name: found for found in gpu_probes.probe_gpu()}
    assert told["nvidia-fs"].found == "version: 2.17"
    assert told["udev"].found == f"1 records in {nvidia / 'udev'}"


def test_a_drive_that_cufile_cannot_look_up(nvidia: Path) -> None:
    device = nvidia.stat().st_dev
    record = nvidia / "udev" / f"b{os.major(device)}:{os.minor(device)}"
    told = gpu_probes.unknown_to_cufile(str(nvidia))
    assert f"`{record}` names no file system" in told
    assert told in probe_folder(str(nvidia)).advice or "memory" in probe_folder(str(nvidia)).advice
    record.write_text("S:disk\n")
    assert gpu_probes.unknown_to_cufile(str(nvidia)) == told
    record.write_text("S:disk\nE:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n")
    assert gpu_probes.unknown_to_cufile(str(nvidia)) == ""


def test_the_size_of_bar1() -> None:
    assert gpu_probes.bar1_size(BAR1) == "262144 MiB"
    with pytest.raises(ValueError, match="names no BAR1"):
        gpu_probes.bar1_size("nothing")


def test_memory_that_cannot_be_locked_is_named_with_the_limit(
    nvidia: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_probes, "LOCKED_BYTES", 1 << 46)
    told = [found for found in gpu_probes.probe_gpu() if found.name == "locked memory"]
    assert [found.ok for found in told] == [False]
    monkeypatch.setattr(gpu_probes, "LOCKED_BYTES", 4096)
    told = [found for found in gpu_probes.probe_gpu() if found.name == "locked memory"]
    assert told[0].ok
    assert "locked; " in told[0].found


def test_unknown_option_is_a_usage_error() -> None:
    assert "--nonsense" in failed(here("doctor", "--nonsense"), 2)
