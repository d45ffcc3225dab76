"""Files that are missing, broken, of another kind or too new, through the real command."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli import failed, here, names_in, teraio
from traces import training_trace

from teraio.profiler.trace import write_trace

if TYPE_CHECKING:
    from pathlib import Path


def _trace() -> bytes:
    sink = io.BytesIO()
    write_trace(training_trace(3), sink)
    return sink.getvalue()


def _with_metadata(**changes: str) -> bytes:
    table = pq.read_table(io.BytesIO(_trace()))
    metadata = table.schema.metadata | {f"teraio.{k}".encode(): v for k, v in changes.items()}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return sink.getvalue()


def _other_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}), sink)
    return sink.getvalue()


def _no_rows() -> bytes:
    table = pq.read_table(io.BytesIO(_trace()))
    sink = io.BytesIO()
    pq.write_table(table.slice(0, 0), sink)
    return sink.getvalue()


NO_TRACES = {
    "empty": (b"", "empty"),
    "truncated": (_trace()[:-300], "not a teraio trace"),
    "head only": (b"PAR1", "not a teraio trace"),
    "another Parquet file": (_other_parquet(), "not a teraio trace"),
    "newer format": (_with_metadata(format="2"), "trace format 2"),
    "broken metadata": (_with_metadata(signatures="?"), "not a teraio trace"),
    "no rows": (_no_rows(), "no steps"),
}
NO_PLANS = {
    "text": (b"hello", "neither a trace nor a plan"),
    "bytes": (bytes(range(256)), "neither a trace nor a plan"),
    "truncated": (b'{"format": "teraio-plan/1", "trace": {', "not a plan"),
    "another JSON file": (b'{"version": 3}', "another kind"),
    "a list": (b"[1, 2]", "no JSON object"),
    "newer format": (b'{"format": "teraio-plan/2"}', "plan format 2"),
    "incomplete": (b'{"format": "teraio-plan/1"}', "missing"),
    "deep": (b'{"a":' * 100_000, "not a plan"),
}


@pytest.mark.parametrize("what", [*NO_TRACES, *NO_PLANS])
def test_inspect_explains_a_bad_file(what: str, tmp_path: Path) -> None:
    content, words = (NO_TRACES | NO_PLANS)[what]
    path = tmp_path / "file"
    path.write_bytes(content)
    said = failed(here("inspect", path), 65)
    assert words in said
    assert str(path) in said


@pytest.mark.parametrize("what", NO_TRACES)
def test_plan_explains_a_bad_trace(what: str, tmp_path: Path) -> None:
    content, words = NO_TRACES[what]
    path = tmp_path / "file"
    path.write_bytes(content)
    said = failed(here("plan", path, "--memory", "1GiB", cwd=tmp_path), 65)
    assert words in said
    assert names_in(tmp_path) == ["file"]


@pytest.mark.parametrize("command", [("inspect",), ("plan", "--memory", "1GiB")])
def test_missing_and_unreadable_files(command: tuple[str, ...], tmp_path: Path) -> None:
    assert "no such file" in failed(here(*command, tmp_path / "none"), 66)
    assert "no such file" in failed(here(*command, tmp_path / "none" / "none"), 66)
    assert "is a folder" in failed(here(*command, tmp_path), 65)
    assert "`stdin`" in failed(here(*command, "-"), 65)


def test_a_plan_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "old-plan.json"
    path.write_text('{"format": "teraio-plan/1"}')
    said = failed(here("plan", path, "--memory", "1GiB", cwd=tmp_path), 65)
    assert "not a teraio trace" in said


def test_content_decides_and_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(_trace())
    done = here("inspect", path, "--json")
    assert json.loads(done.stdout)["file"] == "trace"


def test_stdin_serves_as_a_file() -> None:
    done = teraio("inspect", "-", "--json", stdin=_trace())
    assert json.loads(done.stdout)["file"] == "trace"
    assert done.stderr.decode() == "\nnext: teraio plan TRACE -o plan.json --memory 60%\n"


def test_hints_are_on_a_line_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(_other_parquet())
    said = failed(here("inspect", path), 65)
    assert re.fullmatch(r"error: [^\n]+[^.\n]\n\nhint: [^\n]+[^.\n]\n", said)
