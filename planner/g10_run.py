"""The hardware of a G10 run, and G10's own plan as one that the simulator replays.

G10 (MICRO 2023, arXiv 2310.09443) writes its plan as `prefetch_guide.config`: at which kernel a
tensor starts to leave the device, to host memory or SSD, and at which it starts to come back.
Here the same intervals are used with the same tiers, and each prefetch starts where G10 issues
it; the windows within the memory are found as for any policy (see `windows`), because G10's
simulator, too, makes room when it is needed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from teraio.planner.make import make_plan
from teraio.planner.plan import HOST, SSD, Controls, Hardware, HostLink, Ssd
from teraio.planner.problem import Answer
from teraio.planner.tiers import Chosen
from teraio.planner.windows import fit_windows
from teraio.profiler.errors import BadInputError, InputMissingError
from teraio.profiler.importers.g10_config import read_config

if TYPE_CHECKING:
    from teraio.planner.plan import Plan
    from teraio.planner.problem import Problem
    from teraio.planner.step import Step, StepTensor
    from teraio.profiler.importers.g10_config import G10Config
    from teraio.profiler.importers.g10_files import G10Files
    from teraio.profiler.importers.lines import Lines
    from teraio.profiler.trace import Trace

NAME: Final = "g10 (its own plan)"
"""What a plan calls its policy if it is G10's own."""

_LINE: Final = re.compile(
    r"Issued Time: ([0-9]{1,10}) Tensor: ([0-9]{1,10}) G:[ox] From: \w+, "
    r"To: (In_gpu|In_cpu|In_ssd|Not_present)",
    re.ASCII,
)
_TIERS: Final = {"In_cpu": HOST, "In_ssd": SSD}
_TO_GPU: Final = "In_gpu"


class Eviction(NamedTuple):
    """An idle interval that G10's plan uses: that of `tensor`, an index into `Step.tensors`,
    which begins after op `after_op`.

    Its copy goes to `tier`. The prefetch starts after `issue_after`, which counts on into the
    next step; None if the plan issues none.
    """

    tensor: int
    after_op: int
    tier: str
    issue_after: int | None


class _Hint(NamedTuple):
    """A line of the plan: the tensor, an index, goes `to` somewhere after op `after`.

    That is between its uses at ops `begin` and `end`; `after` and `end` count on into the next
    step.
    """

    line: int
    tensor: int
    to: str
    after: int
    begin: int
    end: int


def hardware_of(files: G10Files) -> Hardware:
    """Return the channels that a G10 run was told to plan for.

    A GB/s is 10^9 bytes per second in G10. The host link gives the smaller of the device's and
    the host's rate each way. G10 has a latency each for reading and writing the SSD; the larger
    one is taken.

    Raises InputMissingError if the run has no configuration, and BadInputError if that is
    broken or lacks a rate.
    """
    config = _config(files)
    ssd = _required(files, config.ssd_bytes_per_s, "SSD_PCIe_bandwidth_GBps")
    device = _required(files, config.gpu_link_bytes_per_s, "GPU_PCIe_bandwidth_GBps")
    link = min(device, config.host_link_bytes_per_s or device)
    latency = max(config.ssd_read_latency_ns or 0, config.ssd_write_latency_ns or 0)
    source = "given: the configuration of a G10 run"
    return Hardware(
        Ssd(read_bytes_per_s=ssd, write_bytes_per_s=ssd, latency_ns=latency),
        HostLink(to_host_bytes_per_s=link, to_gpu_bytes_per_s=link),
        {"ssd": source, "host_link": source},
    )


def memory_of(files: G10Files) -> tuple[int, int]:
    """Return the bytes of device and of host memory that a G10 run was told to plan for.

    A GB of memory is 2^30 bytes in G10; a run without a line for host memory has none. Raises as
    `hardware_of` does.
    """
    config = _config(files)
    return _required(files, config.gpu_bytes, "GPU_memory_size_GB"), config.host_bytes or 0


def _config(files: G10Files) -> G10Config:
    if files.config is None:
        msg = f"no configuration beside the G10 run `{files.label}`"
        raise InputMissingError(msg, hint="put it beside the run's folder, named `FOLDER.config`")
    return read_config(files.config)


def _required(files: G10Files, value: int | None, key: str) -> int:
    if value is None:
        label = files.config.label if files.config else files.label
        msg = f"`{label}` has no `{key}`"
        raise BadInputError(msg, hint="it is one of the keys that every G10 configuration has")
    return value


def g10_plan(
    trace: Trace,
    files: G10Files,
    *,
    sha256: str,
    memory_bytes: int,
    host_bytes: int,
    hardware: Hardware,
) -> Plan:
    """Return G10's own plan for `trace`, which `files` were imported as.

    `sha256` is that of the trace's file. Raises InputMissingError if the run has no plan,
    BadInputError, which names the file and the line, if it is broken or does not fit the step,
    and InfeasibleError if the step does not fit the memory with all that G10 moves away.
    """
    guide = files.guide
    if guide is None:
        msg = f"the G10 run `{files.label}` has no `prefetch_guide.config`"
        raise InputMissingError(msg, hint="G10 writes one if `use_prefetch` is 1")

    def answer(problem: Problem) -> Answer:
        return Answer(fit_windows(problem, chosen(problem, read_guide(guide, problem.step))))

    return make_plan(
        trace,
        sha256=sha256,
        memory_bytes=memory_bytes,
        host_bytes=host_bytes,
        hardware=hardware,
        policy=NAME,
        answering=answer,
        controls=Controls(min_tensor_bytes=0),
    )


def chosen(problem: Problem, evictions: list[Eviction]) -> list[Chosen]:
    """Return the choice among the intervals of `problem` that G10's evictions are."""
    place = {(i.tensor, i.after_op): index for index, i in enumerate(problem.intervals)}
    return [Chosen(place[e.tensor, e.after_op], e.tier, e.issue_after) for e in evictions]


def read_guide(file: Lines, step: Step) -> list[Eviction]:
    """Return the intervals that G10's plan uses in `step`, in the order in which they begin.

    A hint issued at time t takes effect as kernel t begins, after op t - 1. A tensor is taken to
    leave as soon as it falls idle, which is where G10 issues evictions. Allocations and
    deallocations are hints as well, and say nothing that the tensors' lives do not.

    Raises BadInputError, which names the file and the line, for a hint that is broken, of an
    unknown tensor or out of order, and for an eviction where the tensor is in use or away.
    """
    index_of = {tensor.id: index for index, tensor in enumerate(step.tensors)}
    evictions: dict[tuple[int, int], _Hint] = {}
    prefetches: dict[tuple[int, int], int] = {}
    hints = _hints(file, step, index_of)
    for hint in hints:
        if hint.to in _TIERS:
            _note_eviction(file, hint, evictions)
    for hint in hints:
        own = evictions.get((hint.tensor, hint.begin))
        if own is not None and hint.to == _TO_GPU and hint.after >= own.after:
            prefetches.setdefault((hint.tensor, hint.begin), hint.after)
    found = [
        Eviction(tensor, begin, _TIERS[hint.to], prefetches.get((tensor, begin)))
        for (tensor, begin), hint in evictions.items()
    ]
    return sorted(found, key=lambda eviction: (eviction.after_op, eviction.tensor))


def _hints(file: Lines, step: Step, index_of: dict[int, int]) -> list[_Hint]:
    found = []
    earliest = 0
    for line, text in enumerate(file.lines):
        match = _LINE.fullmatch(text)
        if match is None:
            file.unlike(line, "`Issued Time: 1 Tensor: 2 G:o From: Not_Known, To: In_cpu`")
        earliest = file.whole(line, match[1], "the time", least=earliest, most=len(step.ops))
        tensor = index_of.get(int(match[2]))
        if tensor is None:
            file.fail(line, f"tensor {match[2]} is not in the trace")
        after, begin, end = _around(step.tensors[tensor], earliest - 1, len(step.ops))
        found.append(_Hint(line, tensor, match[3], after, begin, end))
    return found


def _around(tensor: StepTensor, after: int, n_ops: int) -> tuple[int, int, int]:
    """Return `after`, counted on if need be, with the uses before and after its end.

    Both are -1 outside the tensor's life.
    """
    uses = [use.op for use in tensor.uses]
    following = bisect_right(uses, after)
    if 0 < following < len(uses):
        return after, uses[following - 1], uses[following]
    if not tensor.persistent or not uses:
        return after, -1, -1
    return (after if following else after + n_ops), uses[-1], uses[0] + n_ops


def _note_eviction(file: Lines, hint: _Hint, evictions: dict[tuple[int, int], _Hint]) -> None:
    place = (hint.tensor, hint.begin)
    if hint.after > hint.end - 2:
        file.fail(hint.line, "the tensor is evicted where it is not idle")
    if place in evictions:
        before = evictions[place].line + 1
        file.fail(hint.line, f"the tensor is evicted twice in one interval, first by line {before}")
    evictions[place] = hint
