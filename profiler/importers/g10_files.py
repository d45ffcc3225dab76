"""Where the files of a G10 run are: in a folder, or in an archive that is read as a stream.

Nothing is unpacked to disk. Of an archive only the files named here are kept, and no more than
the limits below are ever read of it, whatever it claims to hold.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, NoReturn, Self

from teraio.profiler.errors import BadInputError, InputMissingError
from teraio.profiler.importers.lines import Lines, lines_of

LARGEST_FILE: Final = 1 << 28
"""Bytes: a larger file is refused, and so are an archive's `.config` files if they have more
together. The statistics of a step of 2,300 kernels take 2 MB each."""

LARGEST_ARCHIVE: Final = 1 << 30
"""Bytes of an archive, unpacked: reading stops with an error once there are more."""

MOST_MEMBERS: Final = 10_000
"""Members of an archive: reading stops with an error once there are more."""

LARGEST_HEADER: Final = 1 << 16
"""Bytes of an archive's header with a long name or other fields: a larger one is refused."""

_STATISTICS: Final = "statistics"
_NEEDED: Final = ("tensors.config", "interval.config", "kernels.config")
_GUIDE: Final = "prefetch_guide.config"
_HINT: Final = (
    "name the folder that holds G10's `statistics`, that folder itself, or a .tar.gz of it"
)
_EXTENSIONS: Final = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True)
class G10Files:
    """The files of one run of G10's program: what its planner was given and what it answered.

    `guide` is G10's own plan and `config` the run's configuration, where they are there.
    """

    label: str
    tensors: Lines
    interval: Lines
    kernels: Lines
    guide: Lines | None = None
    config: Lines | None = None


def find_g10(source: Path | IO[bytes], *, name: str = "") -> G10Files:
    """Find the files of a G10 run in a folder, an archive, or an open binary file of one.

    The configuration is the file `NAME.config` beside the run's folder `NAME`, or else the only
    one in it. Raises InputMissingError if there is nothing at that path, and BadInputError if
    what is there is no such run, holds two of them, or is larger than the limits.
    """
    label = name or str(source)
    if not isinstance(source, Path):
        return _from_archive(source, label)
    if source.is_dir():
        return _from_folder(source, label)
    try:
        with source.open("rb") as stream:
            return _from_archive(stream, label)
    except FileNotFoundError:
        msg = f"no such file or folder: `{label}`"
        raise InputMissingError(msg, hint=_HINT) from None
    except OSError as error:
        msg = f"cannot read `{label}`: {error.strerror or error}"
        raise InputMissingError(msg) from error


def _from_folder(folder: Path, label: str) -> G10Files:
    inner = folder / _STATISTICS
    statistics = inner if inner.is_dir() else folder
    here = folder.resolve()
    run = here.parent if statistics == folder and here.name == _STATISTICS else here
    found = {name: _read(statistics / name) for name in (*_NEEDED, _GUIDE)}
    present = {name: lines for name, lines in found.items() if lines is not None}
    if beside := _read(run.parent / f"{run.name}.config"):
        return _assembled(label, present, beside)
    inside = [] if statistics.resolve() == run else sorted(run.glob("*.config"))
    if len(inside) > 1:
        _too_many(label, [path.name for path in inside])
    return _assembled(label, present, _read(inside[0]) if inside else None)


def _read(path: Path) -> Lines | None:
    if not path.is_file():
        return None
    if path.stat().st_size > LARGEST_FILE:
        msg = f"`{path}` is larger than {LARGEST_FILE} bytes"
        raise BadInputError(msg)
    return lines_of(str(path), path.read_bytes())


def _assembled(label: str, found: dict[str, Lines], config: Lines | None) -> G10Files:
    for name in _NEEDED:
        if name not in found:
            msg = f"no G10 run: `{label}` has no `{name}`"
            raise BadInputError(msg, hint=_HINT)
    tensors, interval, kernels = (found[name] for name in _NEEDED)
    return G10Files(label, tensors, interval, kernels, found.get(_GUIDE), config)


def _too_many(label: str, names: list[str]) -> NoReturn:
    msg = f"`{label}` holds {len(names)} configurations: {', '.join(sorted(names))}"
    raise BadInputError(msg, hint="keep that of the run, named as its folder and beside it")


def _from_archive(stream: IO[bytes], label: str) -> G10Files:
    contents = _members(stream, label)
    folders = {path.parent for path in contents if path.name in _NEEDED}
    if len(folders) > 1:
        named = ", ".join(sorted(map(str, folders)))
        msg = f"`{label}` holds {len(folders)} G10 runs: {named}"
        raise BadInputError(msg, hint="put one run into an archive")
    statistics = next(iter(folders), PurePosixPath(_STATISTICS))
    run = statistics.parent
    others = [path for path in contents if path.parent != statistics]
    configs = [path for path in others if path.parent in {run, run.parent}]
    beside = run.parent / f"{run.name}.config"
    if beside not in configs and len(configs) > 1:
        _too_many(label, [str(path) for path in configs])

    def read(path: PurePosixPath) -> Lines:
        return lines_of(f"{label}:{path}", contents[path])

    known = [statistics / name for name in (*_NEEDED, _GUIDE)]
    found = {path.name: read(path) for path in known if path in contents}
    config = beside if beside in configs else next(iter(configs), None)
    return _assembled(label, found, None if config is None else read(config))


def _members(stream: IO[bytes], label: str) -> dict[PurePosixPath, bytes]:
    """Return the `.config` files of an archive by their paths in it."""
    try:
        return _read_members(stream, label)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError) as error:
        msg = f"no G10 run: `{label}` is no whole .tar.gz archive ({error})"
        raise BadInputError(msg, hint=_HINT) from error


def _read_members(stream: IO[bytes], label: str) -> dict[PurePosixPath, bytes]:
    packed = stream.read(len(_GZIP)) == _GZIP
    stream.seek(0)
    source = gzip.GzipFile(fileobj=stream) if packed else stream
    found: dict[PurePosixPath, bytes] = {}
    total = 0
    limited = _Limited(source, label)
    with tarfile.open(fileobj=limited, mode="r|", tarinfo=_Header) as archive:
        for number, member in enumerate(archive):
            path = PurePosixPath(member.name)
            if number >= MOST_MEMBERS:
                _absurd(label, f"over {MOST_MEMBERS} members")
            if not member.isreg() or path.suffix != ".config":
                continue
            total += member.size
            if total > LARGEST_FILE or member.issparse():
                _absurd(label, f"`{member.name}`, of {member.size} bytes")
            if path in found:
                _absurd(label, f"`{member.name}` twice")
            file = archive.extractfile(member)
            found[path] = file.read() if file else b""
    return found


def _absurd(label: str, what: str) -> NoReturn:
    msg = f"the archive `{label}` holds {what}"
    raise BadInputError(msg, hint=_HINT)


class _Header(tarfile.TarInfo):
    """A header of an archive, refused where `tarfile` would fill memory with what it leads to."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header; raises tarfile.ReadError for a sparse member or a header too long."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENSIONS and header.size > LARGEST_HEADER:
            msg = f"a header of {header.size} bytes, more than the {LARGEST_HEADER} that are read"
            raise tarfile.ReadError(msg)
        if header.type == tarfile.GNUTYPE_SPARSE:
            msg = "it holds a sparse file"
            raise tarfile.ReadError(msg)
        return header

    def _proc_gnusparse_10(self, *_: object) -> NoReturn:  # its map has no limit
        msg = "it holds a sparse file"
        raise tarfile.ReadError(msg)


class _Limited(io.RawIOBase):
    """A binary file of which at most `LARGEST_ARCHIVE` bytes can be read."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, label: str) -> None:
        self._stream = stream
        self._label = label
        self._left = LARGEST_ARCHIVE

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; raises BadInputError past the limit."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            _absurd(self._label, f"over {LARGEST_ARCHIVE} bytes")
        return data
