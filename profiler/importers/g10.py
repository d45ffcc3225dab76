"""G10's traces (MICRO 2023, arXiv 2310.09443): the `statistics` that its program writes for a
model, read as a trace of one step.

An op is a kernel; its time is G10's number of cycles at the frequency of the run's
configuration, or at 1.2 GHz if there is none. The step's length is the exact total, rounded to
a ns, so that it is the ideal that G10 publishes.

What a kernel has as input it reads, what it has as output it writes, and what it has as both it
reads and writes. A tensor that no kernel writes is therefore constant to the planner, which may
drop it and fetch it again without writing it. G10's data says that the step repeats without
anything else happening in between.

A tensor lives from `Birth` to `Death` - 1, and with `Death: -1` (written, never read) in its
birth kernel alone. A global one outlives the step; what it is (weights, running statistics, but
tables that grow with the batch as well) is not said, so its kind is `other`. The idle intervals
that G10 lists are not read: they follow from the uses. Nor is `Range`, a tensor's place in
G10's own address space.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from teraio.profiler.importers.columns import (
    READ,
    READWRITE,
    WRITE,
    Accesses,
    Ops,
    Tensors,
    cumulative_ns,
    imported_info,
    one_step,
)
from teraio.profiler.importers.g10_config import G10Config, read_config
from teraio.profiler.importers.lines import MOST_BYTES, MOST_NS

if TYPE_CHECKING:
    from teraio.profiler.importers.g10_files import G10Files
    from teraio.profiler.importers.lines import Lines
    from teraio.profiler.trace import Trace

_TENSOR: Final = re.compile(
    r"tensor([0-9]+) Is weight \(global\)\?: ([01]), Size in byte: (-?[0-9]+), "
    r"Range:-?[0-9]+---?[0-9]+",
    re.ASCII,
)
_A_TENSOR: Final = "`tensor0 Is weight (global)?: 0, Size in byte: 4096, Range:0--4096`"
_LIVENESS: Final = re.compile(r"Liveness: Birth: (-?[0-9]+), Death: (-?[0-9]+)\.", re.ASCII)
_KERNEL: Final = re.compile(r"Kernel ID: ([0-9]+), Name: (\S+)", re.ASCII)
_PARENT: Final = re.compile(r"Parent (?:OP|Layer) ID: ?(-?[0-9]+); Name: ?(.*)", re.ASCII)
_TIME: Final = re.compile(r"Execution Time: *(-?[0-9]+)", re.ASCII)
_RULE: Final = re.compile(r"[-_]{20,}")
_SHAPE: Final = re.compile(r"\([0-9, ]*\)")
_INTERVALS: Final = re.compile(
    r"Hidding Intervals:|interval [0-9]+: [0-9]+-{8}[0-9]+|Estimated Time: ?[-+.0-9a-z]+", re.ASCII
)
_GONE: Final = -1
"""G10's `Death` of a tensor that is written and never read."""


class _Life(NamedTuple):
    """The first and last kernel a tensor is alive in, -1 for both if it is global; `line` is
    where that is said, counted from 0.
    """

    first: int
    last: int
    line: int


@dataclass
class _Tensors:
    """`tensors.config` by columns; `row` has each tensor's place in them by its line's text."""

    ids: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    is_global: list[bool] = field(default_factory=list)
    row: dict[str, int] = field(default_factory=dict)


@dataclass
class _Kernels:
    """`kernels.config` by columns, and its accesses with the line each is in.

    All kernels together may take `most_cycles`; so far they take `total`.
    """

    most_cycles: int
    total: int = 0
    names: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    accesses: list[tuple[int, int, int]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


def read_g10(files: G10Files) -> Trace:
    """Return the trace of one step that the files of a G10 run describe.

    Raises BadInputError, which names the file and the line, if they are broken, incomplete or
    contradict each other, or if the step has no kernel, no tensor or no device time.
    """
    config = read_config(files.config)
    tensors = _read_tensors(files.tensors)
    kernels = _read_kernels(files.kernels, tensors, config)
    lives = _read_lives(files.interval, tensors, len(kernels.names))
    _require_alive(files, kernels, tensors, lives)
    start_ns = cumulative_ns(kernels.cycles, _ns_per_cycle(config))
    ops = Ops(
        kernels.names, [_phase(n) for n in kernels.names], kernels.modules, np.array(start_ns)
    )
    columns = Tensors(
        ids=np.array(tensors.ids),
        nbytes=np.array(tensors.nbytes),
        kinds=["other" if is_global else "activation" for is_global in tensors.is_global],
        alloc_op=np.array([life.first for life in lives]),
        free_op=np.array([life.last for life in lives]),
    )
    op, tensor, access = (np.array(column) for column in zip(*kernels.accesses, strict=True))
    info = imported_info("the GPU of a G10 run", config.gpu_bytes or 0)
    return one_step(ops, columns, Accesses(op, tensor, access), info)


def _ns_per_cycle(config: G10Config) -> Fraction:
    return 10**9 / config.frequency_hz


def _phase(name: str) -> str:
    """Return the phase of a kernel by its name in G10."""
    if "Apply_Grad" in name:
        return "optimizer"
    if "_Backward" in name or "_MultiGredient" in name:
        return "backward"
    return "forward" if name.endswith("_Forward") else "other"


def _read_tensors(file: Lines) -> _Tensors:
    found = _Tensors()
    known: set[int] = set()
    total = 0
    for index, line in enumerate(file.lines):
        match = _TENSOR.fullmatch(line)
        if match is None:
            file.unlike(index, _A_TENSOR)
        tensor = file.whole(index, match[1], "the tensor's number", most=MOST_BYTES)
        if tensor in known:
            file.fail(index, f"tensor {tensor} is there twice")
        known.add(tensor)
        nbytes = file.whole(index, match[3], "the size in bytes", most=MOST_BYTES)
        total += nbytes
        if total > MOST_BYTES:
            file.fail(index, f"the tensors so far take more than {MOST_BYTES} bytes")
        found.row[line] = len(found.ids)
        found.ids.append(tensor)
        found.nbytes.append(nbytes)
        found.is_global.append(match[2] == "1")
    return found


def _row(file: Lines, index: int, tensors: _Tensors) -> int:
    """Return the place of the tensor whose line stands at `index` of another file."""
    line = file.lines[index] if index < len(file) else ""
    row = tensors.row.get(line)
    if row is None:
        match = _TENSOR.fullmatch(line)
        if match is None:
            file.unlike(index, _A_TENSOR)
        is_known = int(match[1]) in tensors.ids
        said = "otherwise in" if is_known else "not in"
        file.fail(index, f"tensor {match[1]} is {said} `tensors.config`")
    return row


def _read_kernels(file: Lines, tensors: _Tensors, config: G10Config) -> _Kernels:
    found = _Kernels(int(MOST_NS / _ns_per_cycle(config)))
    index = _past_rules(file, 0)
    while index < len(file):
        index = _past_rules(file, _read_kernel(file, index, tensors, found))
    last = len(file) - 1
    if not found.names:
        file.unlike(last, "`Kernel ID: 0, Name: ...`")
    if not found.total:
        file.fail(last, "no kernel takes any time")
    if not found.accesses:
        file.fail(last, "no kernel uses a tensor")
    return found


def _past_rules(file: Lines, index: int) -> int:
    while index < len(file) and _RULE.fullmatch(file.lines[index]):
        index += 1
    return index


def _read_kernel(file: Lines, index: int, tensors: _Tensors, found: _Kernels) -> int:
    """Read the kernel whose first line is at `index`; return the index past its last line."""
    op = len(found.names)
    head = _KERNEL.fullmatch(file.lines[index])
    if head is None or int(head[1]) != op:
        file.unlike(index, f"`Kernel ID: {op}, Name: ...`")
    index += 1
    module = ""
    if index < len(file) and (parent := _PARENT.fullmatch(file.lines[index])):
        module = f"{parent[2]}.{parent[1]}"
        index += 1
    time = _TIME.fullmatch(file.lines[index]) if index < len(file) else None
    if time is None:
        file.unlike(index, "`Execution Time: CYCLES`")
    cycles = file.whole(index, time[1], "the time in cycles", most=found.most_cycles)
    found.total += cycles
    if found.total > found.most_cycles:
        file.fail(index, f"the kernels so far take more than {found.most_cycles} cycles")
    index += 1
    if index < len(file) and _SHAPE.fullmatch(file.lines[index]):
        index += 1
    inputs, index = _read_list(file, index, "Input Tensors:", tensors)
    outputs, index = _read_list(file, index, "Output Tensors:", tensors)
    if index >= len(file) or not (_RULE.fullmatch(file.lines[index])):
        file.unlike(index, "a tensor or a line of `_`")
    found.names.append(head[2])
    found.modules.append(module)
    found.cycles.append(cycles)
    for row, line in (inputs | outputs).items():
        access = READWRITE if row in inputs and row in outputs else READ
        found.accesses.append((op, row, access if row in inputs else WRITE))
        found.lines.append(line)
    return index


def _read_list(
    file: Lines, index: int, title: str, tensors: _Tensors
) -> tuple[dict[int, int], int]:
    """Return the tensors listed under `title`, with the line of each, and the index past them."""
    if index >= len(file) or file.lines[index] != title:
        file.unlike(index, f"`{title}`")
    rows: dict[int, int] = {}
    index += 1
    while index < len(file) and file.lines[index].startswith("tensor"):
        row = _row(file, index, tensors)
        if row in rows:
            file.fail(index, f"tensor {tensors.ids[row]} is there twice")
        rows[row] = index
        index += 1
    return rows, index


def _read_lives(file: Lines, tensors: _Tensors, n_ops: int) -> list[_Life]:
    """Return the life of each tensor of `interval.config`."""
    lives: dict[int, _Life] = {}
    row = None
    for index, line in enumerate(file.lines):
        if line.startswith("tensor"):
            row = _row(file, index, tensors)
        elif line == "Global!" or line.startswith("Liveness"):
            if row is None or row in lives:
                file.unlike(index, "a tensor that has no life yet")
            lives[row] = _life(file, index, n_ops, is_global=tensors.is_global[row])
        elif not (_RULE.fullmatch(line) or _INTERVALS.fullmatch(line)):
            file.unlike(index, "a tensor, its liveness or its intervals")
    for missing in set(range(len(tensors.ids))) - lives.keys():
        file.unlike(len(file), f"the liveness of tensor {tensors.ids[missing]}")
    return [lives[row] for row in range(len(tensors.ids))]


def _life(file: Lines, index: int, n_ops: int, *, is_global: bool) -> _Life:
    line = file.lines[index]
    if is_global != (line == "Global!"):
        file.unlike(index, "`Global!`" if is_global else "`Liveness: Birth: 0, Death: 4.`")
    if is_global:
        return _Life(-1, -1, index)
    match = _LIVENESS.fullmatch(line)
    if match is None:
        file.unlike(index, "`Liveness: Birth: 0, Death: 4.`")
    birth = file.whole(index, match[1], "the birth", most=n_ops - 1)
    death = file.whole(index, match[2], "the death", most=n_ops, least=_GONE)
    if death != _GONE and death <= birth:
        file.fail(index, f"the death, {death}, is not after the birth, {birth}")
    return _Life(birth, birth if death == _GONE else death - 1, index)


def _require_alive(
    files: G10Files, kernels: _Kernels, tensors: _Tensors, lives: list[_Life]
) -> None:
    """Refuse a use outside the life that G10 gives a tensor."""
    for (op, row, _), line in zip(kernels.accesses, kernels.lines, strict=True):
        life = lives[row]
        if not tensors.is_global[row] and not life.first <= op <= life.last:
            where = f"`{files.interval.label}`, line {life.line + 1}"
            files.kernels.fail(
                line,
                f"kernel {op} uses tensor {tensors.ids[row]}, which is alive in kernels "
                f"{life.first} to {life.last} only by {where}",
            )
