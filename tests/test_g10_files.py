"""Finding the files of a G10 run in folders and archives, and refusing what is no run."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from foreign import CONFIG, TOY, archive, write_run

from teraio.planner.step import load_step
from teraio.profiler.errors import BadInputError, InputMissingError
from teraio.profiler.importers import g10_files
from teraio.profiler.importers.g10 import read_g10
from teraio.profiler.importers.g10_files import find_g10

HOME = "toy/statistics/"


def _members(**more: str | bytes) -> dict[str, str | bytes]:
    return {HOME + name: text for name, text in TOY.g10().items()} | more


def test_every_form_of_a_run_gives_the_same_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", TOY.g10())
    packed = tmp_path / "toy.tar.gz"
    packed.write_bytes(archive(_members() | {"toy.config": CONFIG}).getvalue())
    sources = [folder, folder / "statistics", packed]
    steps = [load_step(read_g10(find_g10(source))) for source in sources]
    plain = find_g10(archive(_members(), mode="w"), name="stdin")
    assert {*steps, load_step(read_g10(plain))} == {steps[0]}
    assert all(find_g10(source).config is not None for source in sources)
    assert plain.config is None


def test_a_folder_by_a_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "toy", TOY.g10())
    monkeypatch.chdir(tmp_path / "toy")
    found = find_g10(Path())
    assert found.config is not None
    assert found.tensors.label == "statistics/tensors.config"


def test_statistics_under_another_name_have_the_configuration_beside(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", TOY.g10())
    other = (folder / "statistics").rename(tmp_path / "copied")
    assert find_g10(other).config is None
    (tmp_path / "copied.config").write_text(CONFIG)
    assert find_g10(other).config is not None


def test_the_configuration_may_be_in_the_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", TOY.g10(), config=None)
    (folder / "256-g10.config").write_text(CONFIG)
    found = find_g10(folder).config
    assert found is not None
    assert found.label.endswith("256-g10.config")
    inside = archive(_members() | {"toy/256-g10.config": CONFIG})
    assert find_g10(inside, name="toy.tar.gz").config is not None


def test_the_configuration_beside_comes_first(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", TOY.g10())
    (folder / "a.config").write_text("")
    found = find_g10(folder).config
    assert found is not None
    assert found.label.endswith("toy.config")


def test_two_configurations_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", TOY.g10(), config=None)
    members = _members()
    for name in ("a.config", "b.config"):
        (folder / name).write_text(CONFIG)
        members[f"toy/{name}"] = CONFIG
    with pytest.raises(BadInputError, match=r"holds 2 configurations: a.config, b.config"):
        find_g10(folder)
    with pytest.raises(BadInputError, match=r"holds 2 configurations: toy/a.config, toy/b.config"):
        find_g10(archive(members), name="x.tar.gz")


def test_g10s_own_plan_is_found(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", TOY.g10() | {"prefetch_guide.config": "Issued"})
    guide = find_g10(folder).guide
    assert guide is not None
    assert guide.lines == ("Issued",)


@pytest.mark.parametrize("missing", TOY.g10())
def test_a_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", TOY.g10())
    (folder / "statistics" / missing).unlink()
    with pytest.raises(BadInputError, match=f"has no `{missing}`"):
        find_g10(folder)
    members = _members()
    del members[HOME + missing]
    with pytest.raises(BadInputError, match=f"has no `{missing}`"):
        find_g10(archive(members), name="x.tar.gz")


def test_nothing_there_and_nothing_of_the_kind(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="no such file or folder"):
        find_g10(tmp_path / "none")
    with pytest.raises(BadInputError, match="no G10 run"):
        find_g10(tmp_path)
    text = tmp_path / "text"
    for data in (b"", b"hello", b"\x1f\x8b", gzip.compress(b"hello"), b"\0" * 5000):
        text.write_bytes(data)
        with pytest.raises(BadInputError, match="no G10 run"):
            find_g10(text)


def test_a_file_without_read_permission_is_reported(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("the superuser may read everything")
    path = tmp_path / "x.tar.gz"
    path.write_bytes(archive(_members()).getvalue())
    path.chmod(0)
    with pytest.raises(InputMissingError, match="cannot read"):
        find_g10(path)


def test_an_archive_cut_anywhere_is_refused() -> None:
    whole = archive(_members()).getvalue()
    for kept in range(0, len(whole) - 8, 101):
        with pytest.raises(BadInputError, match="no G10 run"):
            find_g10(io.BytesIO(whole[:kept]), name="x.tar.gz")


def test_a_damaged_archive_is_refused() -> None:
    whole = bytearray(archive(_members()).getvalue())
    whole[len(whole) // 2] ^= 255
    with pytest.raises(BadInputError):
        read_g10(find_g10(io.BytesIO(whole), name="x.tar.gz"))


def test_two_runs_and_repeated_members_are_refused() -> None:
    two = _members() | {f"other/statistics/{n}": text for n, text in TOY.g10().items()}
    with pytest.raises(BadInputError, match="holds 2 G10 runs: other/statistics, toy/statistics"):
        find_g10(archive(two), name="x.tar.gz")
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as tar:
        for _ in range(2):
            member = tarfile.TarInfo(f"{HOME}tensors.config")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    sink.seek(0)
    with pytest.raises(BadInputError, match=r"tensors.config` twice"):
        find_g10(sink, name="x.tar.gz")


def test_links_and_other_files_of_an_archive_are_not_read() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as tar:
        link = tarfile.TarInfo(f"{HOME}tensors.config")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    sink.seek(0)
    with pytest.raises(BadInputError, match=r"has no `tensors.config`"):
        find_g10(sink, name="x.tar.gz")
    found = find_g10(archive(_members() | {"toy/sim_result.final": b"\xff"}), name="x.tar.gz")
    assert found.guide is None


def test_absurd_archives_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(members: dict[str, str | bytes], words: str) -> None:
        with pytest.raises(BadInputError, match=words):
            find_g10(archive(members), name="x.tar.gz")

    monkeypatch.setattr(g10_files, "LARGEST_FILE", 5000)
    refused(_members() | {f"{HOME}prefetch_guide.config": b"x" * 5001}, "of 5001 bytes")
    monkeypatch.setattr(g10_files, "LARGEST_ARCHIVE", 1 << 20)
    refused(_members() | {"toy/other": bytes(2 << 20)}, f"holds over {1 << 20} bytes")
    monkeypatch.setattr(g10_files, "MOST_MEMBERS", 5)
    refused(_members() | {f"toy/{n}": b"" for n in range(6)}, "holds over 5 members")


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [
        (tarfile.GNUTYPE_LONGNAME, 1 << 17, "a header of 131072 bytes"),
        (tarfile.XHDTYPE, 1 << 17, "a header of 131072 bytes"),
        (tarfile.GNUTYPE_SPARSE, 0, "sparse file"),
    ],
)
def test_headers_that_fill_memory_are_refused(kind: bytes, size: int, words: str) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    with pytest.raises(BadInputError, match=words):
        find_g10(io.BytesIO(header.tobuf() + b"n" * size + bytes(1024)), name="x.tar")


def test_long_names_without_end_are_refused() -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    with pytest.raises(BadInputError, match="no whole"):
        find_g10(io.BytesIO((header.tobuf() + b"n" * 512) * 5000), name="x.tar")


def test_a_file_of_too_many_lines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teraio.profiler.importers.lines.MOST_LINES", 100)
    members = _members() | {f"{HOME}kernels.config": b"\n" * 101}
    with pytest.raises(BadInputError, match=r"kernels.config` has 101 lines, more than the 100"):
        find_g10(archive(members), name="x")


def test_a_large_file_in_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "toy", TOY.g10())
    monkeypatch.setattr(g10_files, "LARGEST_FILE", 100)
    with pytest.raises(BadInputError, match="is larger than 100 bytes"):
        find_g10(folder)


def test_nothing_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    find_g10(archive(_members() | {"../outside.config": CONFIG}), name="x.tar.gz")
    assert list(tmp_path.iterdir()) == []
    assert not (tmp_path.parent / "outside.config").exists()


def test_bytes_and_empty_files_are_named_with_their_line() -> None:
    members = _members() | {f"{HOME}tensors.config": b"a\nb\n\xff\n"}
    with pytest.raises(BadInputError, match=r"x:toy/statistics/tensors.config`, line 3: expected"):
        find_g10(archive(members), name="x")
    members = _members() | {f"{HOME}kernels.config": b"\n\n"}
    with pytest.raises(BadInputError, match=r"kernels.config` is empty"):
        find_g10(archive(members), name="x")
