"""The trace: one Parquet file, one row per access. This module imports no torch.

The columns and their meaning are set out in docs/trace-format.md. A trace holds raw events
only; idle intervals, peaks and categories are derived by the planner.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from teraio.profiler.errors import BadInputError, InputMissingError

FORMAT: Final = 1
GRANULE: Final = 512
"""Bytes: sizes are rounded up to this, the granule of PyTorch's caching allocator."""

PHASES: Final = ("forward", "backward", "optimizer", "other")
ACCESSES: Final = ("read", "write", "readwrite", "none")
KINDS: Final = (
    "parameter", "gradient", "optimizer_state", "buffer", "activation", "input", "other",
)  # fmt: skip

MOST_ROWS: Final = 1 << 23
"""Rows of a trace that is read. The largest of the sample traces has 23,154; reading and
checking the rows of a trace at the limit took 2.8 GiB."""

MOST_PACKED_BYTES: Final = 1 << 31
"""Bytes of the columns of a trace that is read, encoded but not compressed."""

_INT64_MAX: Final = (1 << 63) - 1

_Item = TypeVar("_Item", str, int)

_WORD = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("step", pa.int32(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("op_name", _WORD, nullable=False),
        pa.field("phase", _WORD, nullable=False),
        pa.field("module", _WORD, nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False),
        pa.field("workspace_bytes", pa.int64(), nullable=False),
        pa.field("tensor", pa.int64()),
        pa.field("access", _WORD),
        pa.field("nbytes", pa.int64(), nullable=False),
        pa.field("kind", _WORD, nullable=False),
        pa.field("name", _WORD, nullable=False),
        pa.field("alloc_op", pa.int32()),
        pa.field("free_op", pa.int32()),
    ]
)


def rounded(nbytes: int) -> int:
    """Return the bytes an allocation of `nbytes` really takes, a multiple of `GRANULE`."""
    return -(-nbytes // GRANULE) * GRANULE


@dataclass(frozen=True)
class TraceInfo:
    """What a trace says about the run it was recorded from.

    `signatures` has one CRC-32 per op of the last complete step (name, shapes and dtypes);
    `fingerprint` is the SHA-256 of the same sequence in words. Both are empty in a trace that
    was imported from a tool that does not record them; such a trace can be planned for and
    simulated, but its plan cannot be run. `pinned` are tensors that may not leave the device
    (memory torch does not own, or whose address the program has taken).
    """

    device: str
    device_memory_bytes: int
    torch_version: str
    allocator: str
    rank: int
    world_size: int
    steps: int
    command: tuple[str, ...]
    fingerprint: str
    signatures: tuple[int, ...] = ()
    pinned: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Trace:
    """A recorded run: `table` has the columns of `SCHEMA`, sorted by (step, op)."""

    table: pa.Table
    info: TraceInfo

    @property
    def last_step(self) -> int:
        """The number of the last complete step, which a plan describes."""
        return int(self.table.column("step")[-1].as_py())


def ops_by_step(trace: Trace) -> list[int]:
    """Return how many ops each recorded step has, in order."""
    last = trace.table.group_by("step").aggregate([("op", "max")]).sort_by("step")
    return [op + 1 for op in last["op_max"].to_pylist()]


def fingerprint(names: Iterable[str], signatures: Iterable[int]) -> str:
    """Return the SHA-256 of an op sequence: one line per op, its name and its signature."""
    lines = (f"{name} {word:08x}\n" for name, word in zip(names, signatures, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def pack_words(values: tuple[int, ...]) -> str:
    """Pack unsigned 32-bit words into text: little-endian, zlib, base64."""
    return base64.b64encode(zlib.compress(struct.pack(f"<{len(values)}I", *values), 9)).decode()


def unpack_words(text: str, *, limit: int = 1 << 28) -> tuple[int, ...]:
    """Undo `pack_words`.

    Raises ValueError when the text is not such a packing, or unpacks to over `limit` bytes.
    """
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(base64.b64decode(text, validate=True), limit)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof or len(raw) % 4:
        msg = "packed words are truncated or too long"
        raise ValueError(msg)
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def _encodable(word: str) -> str:
    """Return a word with `?` for bytes of a command line that are no UTF-8."""
    return word.encode(errors="replace").decode()


def write_trace(trace: Trace, sink: Path | IO[bytes]) -> None:
    """Write a trace to a path or an open binary file."""
    info = trace.info
    metadata = {
        "teraio.format": str(FORMAT),
        "teraio.kind": "trace",
        "teraio.device": info.device,
        "teraio.device_memory_bytes": str(info.device_memory_bytes),
        "teraio.torch": info.torch_version,
        "teraio.allocator": info.allocator,
        "teraio.rank": str(info.rank),
        "teraio.world_size": str(info.world_size),
        "teraio.steps": str(info.steps),
        "teraio.command": json.dumps([_encodable(word) for word in info.command]),
        "teraio.fingerprint": info.fingerprint,
        "teraio.signatures": pack_words(info.signatures),
        "teraio.pinned": json.dumps(sorted(info.pinned)),
    }
    pq.write_table(
        trace.table.replace_schema_metadata(metadata),
        sink,
        compression="zstd",
        compression_level=9,
    )


def read_trace(source: Path | IO[bytes], *, name: str = "") -> Trace:
    """Read a trace from a path or an open seekable binary file.

    Raises InputMissingError if there is no such file, and BadInputError if it is not a trace of
    a format known here, is larger than the limits above, or holds no step, no storage or no
    device time.
    """
    label = name or str(source)
    if isinstance(source, Path) and not source.is_file():
        msg = f"no such trace: `{label}`"
        raise InputMissingError(
            msg, hint="record one with `teraio profile -o trace.parquet SCRIPT`"
        )
    try:
        # Arrow's threads may abort the process at its end once they have read a Python file
        # (apache/arrow#50482), so the bytes come first and one thread reads them.
        data = source.read_bytes() if isinstance(source, Path) else source.read()
        file = pq.ParquetFile(pa.BufferReader(data))
        _require_size(file.metadata)
        info = _info(file.schema_arrow.metadata or {}, label)
        table = file.read(columns=SCHEMA.names, use_threads=False).select(SCHEMA.names)
        table.validate(full=True)
        table = table.cast(SCHEMA)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        msg = f"not a teraio trace: `{label}` ({_first_line(error)})"
        raise BadInputError(
            msg, hint="a trace is the Parquet file that `teraio profile` writes"
        ) from error
    _require_content(table, label)
    return Trace(table, info)


def _require_size(metadata: pq.FileMetaData) -> None:
    groups = range(metadata.num_row_groups)
    nbytes = sum(metadata.row_group(index).total_byte_size for index in groups)
    for size, most, what in (
        (metadata.num_rows, MOST_ROWS, "rows"),
        (nbytes, MOST_PACKED_BYTES, "unpacked bytes"),
    ):
        if size > most:
            msg = f"{size} {what}, more than the {most} that are read"
            raise ValueError(msg)


def _info(raw: dict[bytes, bytes], label: str) -> TraceInfo:
    meta = {k.decode(): v.decode() for k, v in raw.items() if k.startswith(b"teraio.")}
    version = int(meta["teraio.format"])
    if version > FORMAT:
        msg = f"`{label}` has trace format {version}; this teraio reads up to {FORMAT}"
        raise BadInputError(msg, hint="upgrade teraio, or record the trace again with this one")
    return TraceInfo(
        device=meta["teraio.device"],
        device_memory_bytes=_whole(meta, "device_memory_bytes"),
        torch_version=meta["teraio.torch"],
        allocator=meta["teraio.allocator"],
        rank=_whole(meta, "rank"),
        world_size=_whole(meta, "world_size"),
        steps=_whole(meta, "steps", least=1),
        command=tuple(_list(meta, "command", str)),
        fingerprint=meta["teraio.fingerprint"],
        signatures=unpack_words(meta["teraio.signatures"]),
        pinned=frozenset(_list(meta, "pinned", int)),
    )


def _whole(meta: dict[str, str], key: str, *, least: int = 0) -> int:
    value = int(meta[f"teraio.{key}"])
    if not least <= value <= _INT64_MAX:
        msg = f"teraio.{key} is not from {least} to {_INT64_MAX}"
        raise ValueError(msg)
    return value


def _list(meta: dict[str, str], key: str, kind: type[_Item]) -> list[_Item]:
    """Return the JSON list under `key`, of whole numbers or of texts that UTF-8 can hold."""
    values = json.loads(meta[f"teraio.{key}"])
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        msg = f"teraio.{key} is no list of {kind.__name__}"
        raise ValueError(msg)
    json.dumps(values, ensure_ascii=False).encode()
    return values


def _require_content(table: pa.Table, label: str) -> None:
    tensors = table.column("tensor")
    if table.num_rows == 0:
        lack = "no steps"
    elif tensors.null_count == len(tensors):
        lack = "no storages"
    elif not any(d.as_py() for d in table.column("duration_ns").unique()):
        lack = "no device time"
    else:
        return
    msg = f"`{label}` is empty: {lack} in it"
    raise BadInputError(msg, hint="record the trace again; the script must train at least one step")


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
