"""The trace file: what is written is read, by teraio and without it; anything else is refused."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import T, make_trace, traces, training_trace, with_info

from teraio.profiler.errors import BadInputError, InputMissingError
from teraio.profiler.trace import (
    ACCESSES,
    GRANULE,
    KINDS,
    PHASES,
    SCHEMA,
    Trace,
    pack_words,
    read_trace,
    rounded,
    unpack_words,
    write_trace,
)


def written(trace: Trace) -> io.BytesIO:
    file = io.BytesIO()
    write_trace(trace, file)
    file.seek(0)
    return file


@given(traces())
def test_what_is_written_is_read(trace: Trace) -> None:
    read = read_trace(written(trace))
    assert read.info == trace.info
    assert read.table.to_pylist() == trace.table.to_pylist()
    assert read.last_step == trace.last_step


def test_every_word_of_the_metadata_comes_back(tmp_path: Path) -> None:
    trace = with_info(
        training_trace(2),
        device='an "odd" name', device_memory_bytes=1 << 40, allocator="expandable_segments:True",
        rank=3, world_size=8, command=("-m", "train", "--lr", "3e-4", "a b", 'ü"'),
        signatures=(0, 1, 2**32 - 1), pinned=frozenset({3, 0}),
    )  # fmt: skip
    path = tmp_path / "trace.parquet"
    write_trace(trace, path)
    assert read_trace(path).info == trace.info


def test_the_same_trace_is_the_same_file() -> None:
    assert written(training_trace(3)).getvalue() == written(training_trace(3)).getvalue()


def test_pyarrow_alone_can_read_it() -> None:
    trace = make_trace(
        4,
        [T(7, 1000, "0w 2r", 0, 2), T(9, 512, "1rw", kind="parameter", name="fc.weight")],
        workspace={1: 64}, pinned=(9,),
    )  # fmt: skip
    table = pq.read_table(written(trace))
    assert table.schema.names == SCHEMA.names
    assert table.schema.equals(SCHEMA, check_metadata=False)
    row = table.filter(pa.compute.equal(table["tensor"], 9)).to_pylist()[0]
    assert row == {
        "step": 0, "op": 1, "op_name": "aten.op1", "phase": "forward", "module": "layers.1",
        "start_ns": 1_000_000, "duration_ns": 1_000_000, "workspace_bytes": 64, "tensor": 9,
        "access": "readwrite", "nbytes": 512, "kind": "parameter", "name": "fc.weight",
        "alloc_op": None, "free_op": None,
    }  # fmt: skip
    words = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    assert words["teraio.kind"] == "trace"
    assert words["teraio.format"] == "1"
    assert json.loads(words["teraio.command"]) == ["train.py"]
    assert json.loads(words["teraio.pinned"]) == [9]
    packed = zlib.decompress(base64.b64decode(words["teraio.signatures"]))
    assert struct.unpack("<4I", packed) == (0, 1, 2, 3)


def test_it_is_compressed_and_its_words_are_in_dictionaries() -> None:
    file = pq.ParquetFile(written(training_trace(8)))
    columns = [file.metadata.row_group(0).column(i) for i in range(len(SCHEMA.names))]
    assert {column.compression for column in columns} == {"ZSTD"}
    by_name = {column.path_in_schema: column for column in columns}
    for name in ("op_name", "phase", "module", "access", "kind", "name"):
        assert "RLE_DICTIONARY" in by_name[name].encodings


def test_more_columns_and_another_order_do_no_harm() -> None:
    trace = training_trace(2)
    table = trace.table.append_column("colour", pa.array(["red"] * trace.table.num_rows))
    table = table.select(["colour", *reversed(SCHEMA.names)])
    read = read_trace(written(Trace(table, trace.info)))
    assert read.table.to_pylist() == trace.table.to_pylist()


def test_plain_columns_are_as_good_as_dictionaries() -> None:
    trace = training_trace(2)
    plain = pa.table(
        {name: trace.table[name].to_pylist() for name in SCHEMA.names},
    )
    read = read_trace(written(Trace(plain, trace.info)))
    assert read.table.schema.equals(SCHEMA, check_metadata=False)


def test_words_of_the_design() -> None:
    assert PHASES == ("forward", "backward", "optimizer", "other")
    assert ACCESSES == ("read", "write", "readwrite", "none")
    assert KINDS == (
        "parameter", "gradient", "optimizer_state", "buffer", "activation", "input", "other",
    )  # fmt: skip
    assert SCHEMA.names == [
        "step", "op", "op_name", "phase", "module", "start_ns", "duration_ns", "workspace_bytes",
        "tensor", "access", "nbytes", "kind", "name", "alloc_op", "free_op",
    ]  # fmt: skip


# What is no trace


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match=r"no such trace: `.*absent`"):
        read_trace(tmp_path / "absent")


GOOD = written(training_trace(2)).getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", GOOD[:100], GOOD[:-1], GOOD[: len(GOOD) // 2], b"{}", b"PAR1" + bytes(100)],
    ids=["empty", "magic", "start", "one byte less", "half", "json", "zeros"],
)
def test_a_file_that_is_cut_or_something_else(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    for source in (path, io.BytesIO(content)):
        with pytest.raises(BadInputError, match="not a teraio trace") as caught:
            read_trace(source, name="x.parquet")
        assert "x.parquet" in str(caught.value)
        assert caught.value.hint


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_flipped_byte_gives_a_trace_or_an_error(at: int, by: int) -> None:
    content = bytearray(GOOD)
    content[at] ^= by
    with contextlib.suppress(BadInputError):
        read_trace(io.BytesIO(bytes(content)))


def _with_metadata(**changes: str | None) -> io.BytesIO:
    table = pq.read_table(io.BytesIO(GOOD))
    metadata: dict[bytes, Any] = dict(table.schema.metadata)
    for name, value in changes.items():
        key = f"teraio.{name}".encode()
        metadata.pop(key)
        if value is not None:
            metadata[key] = value.encode()
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), file)
    file.seek(0)
    return file


def test_a_newer_format_says_so() -> None:
    with pytest.raises(BadInputError, match="has trace format 2; this teraio reads up to 1"):
        read_trace(_with_metadata(format="2"))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": None}, {"format": "one"}, {"device": None}, {"steps": "many"},
        {"command": "train.py"}, {"command": "3"}, {"signatures": "!"}, {"signatures": None},
        {"signatures": base64.b64encode(zlib.compress(b"abc")).decode()}, {"pinned": "[null]"},
        {"pinned": "7"}, {"rank": None},
        {"command": "[" * 100_000}, {"pinned": "[" * 100_000}, {"pinned": "[1e999]"},
        {"command": '["\\ud800"]'}, {"command": '"ab"'}, {"device_memory_bytes": "9" * 400},
        {"steps": "-1"}, {"steps": "0"}, {"steps": str(1 << 63)}, {"rank": "-1"},
    ],
)  # fmt: skip
def test_metadata_that_makes_no_sense(changes: dict[str, str | None]) -> None:
    with pytest.raises(BadInputError, match="not a teraio trace"):
        read_trace(_with_metadata(**changes))


def test_a_command_that_is_no_text_is_written_so_that_it_can_be_read() -> None:
    trace = training_trace(2)
    info = replace(trace.info, command=("a.py", "\udcff"))
    assert read_trace(written(Trace(trace.table, info))).info.command == ("a.py", "?")


def test_names_that_are_no_utf8() -> None:
    table = training_trace(2).table
    words = [str(word) for word in table.column("op_name").to_pylist()]
    content = written(training_trace(2)).getvalue()
    plain = io.BytesIO()
    metadata = pq.read_schema(io.BytesIO(content)).metadata
    changed = table.set_column(2, "op_name", pa.array(["qqqqqqqq" for _ in words]))
    changed = changed.replace_schema_metadata(metadata)
    pq.write_table(changed, plain, compression="none", write_statistics=False)
    broken = plain.getvalue().replace(b"qqqqqqqq", b"qqqq\xffqqq")
    plain.seek(0)
    assert read_trace(plain).last_step == training_trace(2).last_step
    with pytest.raises(BadInputError, match="not a teraio trace"):
        read_trace(io.BytesIO(broken))


@pytest.mark.parametrize(
    ("limit", "words"), [("MOST_ROWS", "more than the 3"), ("MOST_PACKED_BYTES", "unpacked bytes")]
)
def test_a_trace_past_a_limit(limit: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"teraio.profiler.trace.{limit}", 3)
    with pytest.raises(BadInputError, match=words):
        read_trace(io.BytesIO(GOOD))


def test_a_parquet_file_of_another_kind() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"step": [1]}), file)
    file.seek(0)
    with pytest.raises(BadInputError, match="not a teraio trace"):
        read_trace(file, name="other.parquet")


@pytest.mark.parametrize("column", SCHEMA.names)
def test_a_column_that_is_missing(column: str) -> None:
    trace = training_trace(2)
    with pytest.raises(BadInputError, match="not a teraio trace"):
        read_trace(written(Trace(trace.table.drop_columns([column]), trace.info)))


@pytest.mark.parametrize(
    ("trace", "lack"),
    [
        (Trace(training_trace(2).table.slice(0, 0), training_trace(2).info), "no steps"),
        (make_trace(3, []), "no storages"),
        (make_trace(3, [T(1, 8, "0r")], durations=0), "no device time"),
    ],
)
def test_a_trace_with_nothing_in_it_is_an_error(trace: Trace, lack: str) -> None:
    with pytest.raises(BadInputError, match=f"is empty: {lack} in it"):
        read_trace(written(trace))


# Words and sizes


@given(st.lists(st.integers(0, 2**32 - 1)).map(tuple))
def test_words_are_unpacked_as_they_were_packed(words: tuple[int, ...]) -> None:
    text = pack_words(words)
    assert text.isascii()
    assert unpack_words(text) == words


def test_packed_words_cannot_fill_memory() -> None:
    text = pack_words((0,) * 1000)
    assert unpack_words(text, limit=4000) == (0,) * 1000
    with pytest.raises(ValueError, match="too long"):
        unpack_words(text, limit=3999)


@pytest.mark.parametrize("text", ["", "?", "AAAA", pack_words((1, 2))[:-4], "ü"])
def test_what_is_no_packing(text: str) -> None:
    with pytest.raises(ValueError):
        unpack_words(text)


@given(st.integers(0, 1 << 60))
def test_sizes_are_rounded_up_to_the_granule(nbytes: int) -> None:
    assert rounded(nbytes) % GRANULE == 0
    assert nbytes <= rounded(nbytes) < nbytes + GRANULE
