"""Outputs appear whole or not at all; inputs can seek wherever they come from."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
from cli import failed, here, names_in
from foreign import TOY, write_run
from traces import training_trace

from teraio.planner.hardware import ASSUMED
from teraio.profiler.errors import InputMissingError, OutputExistsError, StorageError, UsageError
from teraio.profiler.trace import write_trace
from teraio_cli.main import explain
from teraio_cli.outputs import open_input, open_output, print_table, require_output, say


def _write(target: Path, data: bytes, *, force: bool = False) -> None:
    with open_output(str(target), force=force) as stream:
        stream.write(data)


def test_output_is_whole(tmp_path: Path) -> None:
    _write(tmp_path / "a", b"data")
    assert (tmp_path / "a").read_bytes() == b"data"
    assert names_in(tmp_path) == ["a"]


def test_control_characters_are_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[2Jb\x9bc\rd"
    say(f"no such tensor: {name}\n\thint")
    print_table(["name"], [[name]])
    shown = r"a\x1b[2Jb\x9bc\x0dd"
    found = capsys.readouterr()
    assert found.err == f"no such tensor: {shown}\n\thint\n"
    assert found.out.splitlines()[-1] == shown


def test_an_error_of_any_length_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    explain(StorageError("x" * 10_000, hint="go on"))
    assert capsys.readouterr().err == f"error: {'x' * 4000}... (10000 characters)\n\nhint: go on\n"


def test_output_has_the_permissions_of_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    _write(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_existing_output_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(OutputExistsError, match="exists"):
        _write(path, b"new")
    assert path.read_bytes() == b"old"
    _write(path, b"new", force=True)
    assert path.read_bytes() == b"new"


def test_failure_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), open_output(str(path), force=True) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a"]


def test_full_disk_is_explained() -> None:
    with (
        pytest.raises(StorageError, match="cannot write `/dev/full`: No space left on device"),
        open_output("/dev/full", force=False) as stream,
    ):
        stream.write(b"data")


def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    _write(Path(os.devnull), b"data")
    assert Path(os.devnull).is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    _write(pipe, b"data")
    reader.join()
    assert got == [b"data"]
    assert pipe.is_fifo()


def test_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.touch()
    link = tmp_path / "link"
    link.symlink_to(real)
    _write(link, b"data", force=True)
    assert link.is_symlink()
    assert real.read_bytes() == b"data"


def test_missing_folder_and_folder_as_file(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="no such folder"):
        require_output(str(tmp_path / "none" / "a"), force=False)
    with pytest.raises(StorageError, match="it is a folder"):
        require_output(str(tmp_path), force=True)


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    source, link, other = (tmp_path / name for name in ("a", "b", "c"))
    source.write_bytes(b"data")
    link.symlink_to(source)
    other.touch()
    for force in (False, True):
        for target in (source, link):
            with pytest.raises(UsageError, match="is an input of this command"):
                require_output(str(target), force=force, inputs=(None, "-", "x", str(source)))
    require_output(str(other), force=True, inputs=(None, "-", "x" * 5000, str(source)))


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "a", "--memory", "60%", "-o", "a"),
        ("plan", "a", "--memory", "60%", "--hardware", "hw", "-o", "hw"),
        ("export", "a", "-o", "a"),
        ("export", "a", "--plan", "hw", "-o", "hw"),
        ("run", "--report", "a", "a", "train.py"),
        ("run", "--report", "train.py", "a", "train.py"),
        ("profile", "-o", "train.py", "train.py"),
        ("compare", "a", "--memory", "60%", "--plot", "a.svg"),
        ("sweep", "a", "--memory", "60%", "--plot", "a.svg"),
        ("import", "teraio", "a", "-o", "a"),
        ("import", "g10", "a", "-o", "x", "--plan", "a"),
    ],
)
def test_no_command_replaces_what_it_reads(words: tuple[str, ...], tmp_path: Path) -> None:
    if "--plot" in words:
        pytest.importorskip("matplotlib")
    write_trace(training_trace(3), tmp_path / "a")
    (tmp_path / "a.svg").symlink_to("a")
    (tmp_path / "hw").write_text(json.dumps(asdict(ASSUMED)))
    (tmp_path / "train.py").write_text("pass")
    before = {name: (tmp_path / name).read_bytes() for name in ("a", "hw", "train.py")}
    at = 2 if words[0] == "import" else 1
    done = here(*words[:at], "--force", *words[at:], cwd=tmp_path)
    assert "is an input of this command" in failed(done, 2)
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


def test_a_file_of_an_imported_folder_is_not_replaced(tmp_path: Path) -> None:
    run = write_run(tmp_path / "toy", TOY.g10())
    target = run / "statistics" / "kernels.config"
    before = target.read_bytes()
    done = here("import", "g10", "toy", "-o", target, "--force", cwd=tmp_path)
    assert "is an input of this command" in failed(done, 2)
    assert target.read_bytes() == before


def test_pipe_can_seek_as_an_input(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"data"))
    writer.start()
    with open_input(str(pipe)) as stream:
        assert stream.read() == b"data"
        stream.seek(1)
        assert stream.read() == b"ata"
    writer.join()


def test_piped_table_is_plain_with_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    print_table(("name", "bytes>"), [("[red]a", "1"), (long, "1000")], title="title")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]a" in out
    assert long in out
    lines = out.splitlines()
    assert len(lines) == 4
    assert all(line == line.rstrip() for line in lines)
    ends = {line.rindex("1") + line[line.rindex("1") :].count("0") for line in lines if "1" in line}
    assert len(ends) == 1
