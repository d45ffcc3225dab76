"""TERAIO's traces (arXiv 2506.06472): the file `semantics.in` that its planner reads, as a trace
of one step.

An op is a kernel. The format says which kernels use a tensor and on which device, but not
whether they read or write. So an intermediate is taken to be written by the first kernel that
uses it, and every other use to read and write: a copy that is made of a tensor never counts as
current after the next use, and the planner never drops one.

Only uses on the CUDA device count. A tensor that is used elsewhere alone (host, meta, storage)
takes no device memory and is left out. The others live from their first use there to their last;
those in the list of global tensors outlive the step, with kind `other`, as the format does not
say what they are. Device times can be scaled: in traces recorded while tensors were swapped on
demand the kernels' times contain the swapping.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from teraio.profiler.errors import BadInputError, UsageError
from teraio.profiler.importers.columns import (
    READWRITE,
    WRITE,
    Accesses,
    Ops,
    Tensors,
    cumulative_ns,
    imported_info,
    one_step,
)
from teraio.profiler.importers.lines import MOST_BYTES, MOST_NS, Lines, lines_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.profiler.trace import Trace

LARGEST_FILE: Final = 1 << 28
"""Bytes, unpacked: a larger file is refused. A step of 136,000 kernels takes 7 MB."""

MOST_ID: Final = (1 << 31) - 1
"""The largest number of a tensor or kernel that is accepted."""

_DEVICES: Final = re.compile(r"[0-9]+:[A-Z]+(?:,[0-9]+:[A-Z]+)*", re.ASCII)
_IDS: Final = re.compile(r"(?:[0-9]{1,10}(?:,[0-9]{1,10})*)?,?", re.ASCII)
_TENSOR: Final = re.compile(
    r"([0-9]{1,10})\|(-?[0-9]{1,30})\|((?:[0-9]{1,10}:[0-9]{1,4}:-?[0-9]{1,4}(?:,|$))*)", re.ASCII
)
_KERNEL: Final = re.compile(r"([0-9]{1,10}) (-?[0-9]{1,30})(?: [0-9.e+-]+)?", re.ASCII)
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True)
class Semantics:
    """A `semantics.in` in columns: one entry a tensor, a use on the device, or a kernel.

    `use_tensor` are indices into `ids`, in ascending order, and `use_op` ascends within each
    tensor. `loss_op` is the kernel that makes the loss, -1 if that is not known.
    """

    ids: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    is_global: NDArray[np.bool_]
    use_tensor: NDArray[np.int64]
    use_op: NDArray[np.int64]
    kernel_ns: list[int]
    loss_op: int


def read_semantics(source: IO[bytes], *, name: str) -> Semantics:
    """Return what an open `semantics.in` says, plain or gzip.

    Raises BadInputError, which names the file and the line, if it is broken or incomplete.
    """
    file = lines_of(name, _unpacked(source, name))
    cuda = _cuda(file)
    n_tensors = _count(file, 2, "the number of tensors")
    head = 3 + n_tensors
    n_kernels = _count(file, head, "the number of kernels")
    kernel_ns = _kernels(file, head + 1, n_kernels)
    loss_op = _loss(file, head + 1 + n_kernels, n_kernels)
    rows = _tensor_rows(file, n_tensors)
    ids = [int(row[0]) for row in rows]
    nbytes = _sizes(file, rows)
    is_global = _globals(file, ids)
    use_tensor, use_op = _uses(file, rows, cuda, n_kernels)
    return Semantics(
        np.array(ids, dtype=np.int64),
        np.array(nbytes, dtype=np.int64),
        is_global,
        use_tensor,
        use_op,
        kernel_ns,
        loss_op,
    )


def trace_of(
    semantics: Semantics, *, step_ns: int | None = None, speed_up: Fraction = Fraction(1)
) -> Trace:
    """Return the trace of one step that a `semantics.in` describes.

    Device times are divided by `speed_up`, or scaled so that the step takes `step_ns`. Raises
    UsageError if either is not above zero, or the scaled step takes no time or over `MOST_NS`.
    """
    scale = _scale(sum(semantics.kernel_ns), step_ns, speed_up)
    start_ns = cumulative_ns(semantics.kernel_ns, scale)
    on_device, firsts, lasts, place = _spans(semantics)
    is_global = semantics.is_global[on_device]
    n_ops = len(semantics.kernel_ns)
    forward = semantics.loss_op + 1
    ops = Ops(
        names=["kernel"] * n_ops,
        phases=["forward"] * forward + ["other"] * (n_ops - forward),
        modules=[""] * n_ops,
        start_ns=np.array(start_ns),
    )
    tensors = Tensors(
        ids=semantics.ids[on_device],
        nbytes=semantics.nbytes[on_device],
        kinds=["other" if outlives else "activation" for outlives in is_global],
        alloc_op=np.where(is_global, -1, semantics.use_op[firsts]),
        free_op=np.where(is_global, -1, semantics.use_op[lasts]),
    )
    access = np.full(len(place), READWRITE)
    access[firsts[~is_global]] = WRITE
    by_op = np.argsort(semantics.use_op, kind="stable")
    accesses = Accesses(semantics.use_op[by_op], place[by_op], access[by_op])
    return one_step(ops, tensors, accesses, imported_info("the GPU of a TERAIO trace", 0))


def _scale(total_ns: int, step_ns: int | None, speed_up: Fraction) -> Fraction:
    if speed_up <= 0 or (step_ns is not None and step_ns <= 0):
        msg = f"times cannot be scaled by {speed_up} to a step of {step_ns} ns"
        raise UsageError(msg, hint="both must be above zero")
    scale = 1 / speed_up if step_ns is None else Fraction(step_ns, total_ns)
    scaled_ns = round(total_ns * scale)
    if not 1 <= scaled_ns <= MOST_NS:
        msg = f"the scaled step would take {scaled_ns} ns, not 1 to {MOST_NS}"
        raise UsageError(msg, hint=f"as recorded, it takes {total_ns} ns")
    return scale


def _unpacked(source: IO[bytes], name: str) -> bytes:
    head = source.read(len(_GZIP))
    source.seek(0)
    try:
        stream = gzip.GzipFile(fileobj=source) if head == _GZIP else source
        data = stream.read(LARGEST_FILE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        msg = f"`{name}` is no whole gzip file ({error})"
        raise BadInputError(msg) from error
    if len(data) > LARGEST_FILE:
        msg = f"`{name}` is larger than {LARGEST_FILE} bytes"
        raise BadInputError(msg)
    return data


def _cuda(file: Lines) -> str:
    """Return the number that the first line gives to CUDA."""
    expected = "the device types, as `0:CPU,1:CUDA`"
    if not _DEVICES.fullmatch(file.lines[0]):
        file.unlike(0, expected)
    pairs = [pair.split(":") for pair in file.lines[0].split(",")]
    numbers = [number for number, device in pairs if device == "CUDA"]
    if len(numbers) != 1 or len(dict(pairs)) != len(pairs):
        file.unlike(0, f"{expected}, each number once and CUDA among them")
    return numbers[0]


def _count(file: Lines, index: int, what: str) -> int:
    if index >= len(file):
        file.unlike(index, what)
    count = file.whole(index, file.lines[index], what, least=1, most=MOST_ID)
    if count > len(file) - index - 1:
        left = len(file) - index - 1
        file.fail(index, f"{what} is {count}, but only {left} lines follow: the file is truncated")
    return count


def _kernels(file: Lines, first: int, count: int) -> list[int]:
    """Return the ns that each kernel takes."""
    found = []
    total = 0
    for index in range(first, first + count):
        number = index - first
        match = _KERNEL.fullmatch(file.lines[index]) if index < len(file) else None
        if match is None or int(match[1]) != number:
            file.unlike(index, f"kernel {number} and its time in ns")
        duration = file.whole(index, match[2], "the time in ns", most=MOST_NS)
        total += duration
        if total > MOST_NS:
            file.fail(index, f"the kernels so far take more than {MOST_NS} ns")
        found.append(duration)
    if not total:
        file.fail(first + count - 1, "no kernel takes any time")
    return found


def _loss(file: Lines, index: int, n_kernels: int) -> int:
    if index >= len(file):
        file.unlike(index, "the number of the kernel that makes the loss, or -1")
    if index + 1 < len(file):
        file.unlike(index + 1, "the end of the file")
    what = "the kernel that makes the loss"
    return file.whole(index, file.lines[index], what, least=-1, most=n_kernels - 1)


def _tensor_rows(file: Lines, count: int) -> list[tuple[str, ...]]:
    """Return the number, size and uses of each tensor as text."""
    rows = []
    seen: set[str] = set()
    for index in range(3, 3 + count):
        match = _TENSOR.fullmatch(file.lines[index])
        if match is None:
            file.unlike(index, "`TENSOR|BYTES|KERNEL:TYPE:DEVICE,...`")
        if match[1] in seen:
            file.fail(index, f"tensor {match[1]} is there twice")
        seen.add(match[1])
        rows.append(match.groups())
    return rows


def _sizes(file: Lines, rows: list[tuple[str, ...]]) -> list[int]:
    sizes = []
    total = 0
    for index, (_, nbytes, _) in enumerate(rows, start=3):
        size = file.whole(index, nbytes, "the size in bytes", most=MOST_BYTES)
        total += size
        if total > MOST_BYTES:
            file.fail(index, f"the tensors so far take more than {MOST_BYTES} bytes")
        sizes.append(size)
    return sizes


def _globals(file: Lines, ids: list[int]) -> NDArray[np.bool_]:
    if not _IDS.fullmatch(file.lines[1]):
        file.unlike(1, "the numbers of the global tensors, with commas between them")
    listed = [int(word) for word in file.lines[1].split(",") if word]
    place = {tensor: row for row, tensor in enumerate(ids)}
    is_global = np.zeros(len(ids), dtype=np.bool_)
    for tensor in listed:
        if tensor not in place:
            file.fail(1, f"global tensor {tensor} is not among the tensors")
        if is_global[place[tensor]]:
            file.fail(1, f"global tensor {tensor} is there twice")
        is_global[place[tensor]] = True
    return is_global


def _uses(
    file: Lines, rows: list[tuple[str, ...]], cuda: str, n_kernels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tensor and the kernel of each use on the CUDA device."""
    tensors: list[int] = []
    ops: list[int] = []
    device = ""
    for row, (_, _, text) in enumerate(rows):
        here = []
        for use in text.split(","):
            if not use:
                continue
            kernel, kind, place = use.split(":")
            if int(kernel) >= n_kernels:
                file.fail(row + 3, f"there is no kernel {kernel}: the last is {n_kernels - 1}")
            if kind == cuda:
                device = device or place
                if place != device:
                    complaint = f"a use on CUDA device {place} in a trace of CUDA device {device}"
                    file.fail(row + 3, complaint)
                here.append(int(kernel))
        for before, after in pairwise(here):
            if after <= before:
                file.fail(row + 3, f"kernel {after} after kernel {before}: uses must ascend")
        tensors += [row] * len(here)
        ops += here
    if not ops:
        file.fail(len(rows) + 2, "no tensor is used on a CUDA device")
    return np.array(tensors, dtype=np.int64), np.array(ops, dtype=np.int64)


def _spans(
    semantics: Semantics,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the tensors used on the device, their first and last use, and each use's tensor.

    The last is its place among those tensors.
    """
    on_device, firsts, place, counts = np.unique(
        semantics.use_tensor, return_index=True, return_inverse=True, return_counts=True
    )
    return on_device, firsts, firsts + counts - 1, place
