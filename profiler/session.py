"""`teraio profile` as a function: runs a script under the recorder and returns its trace."""

from __future__ import annotations

import os
import platform
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from teraio.profiler.calibration import unseen_ns
from teraio.profiler.clock import clock_for
from teraio.profiler.export import to_trace
from teraio.profiler.interception import intercepting
from teraio.profiler.launcher import number_in
from teraio.profiler.modules import ModuleWatch
from teraio.profiler.opstream import Listener, OpStream
from teraio.profiler.optimizers import OptimizerWatch
from teraio.profiler.recorder import Recorder
from teraio.profiler.script import Script, StopScript, run_script
from teraio.profiler.storages import Block, StorageTable, can_swap, tracked_device
from teraio.profiler.trace import Trace
from teraio.profiler.workspace import meter_for


@dataclass(frozen=True)
class Profile:
    """What came of profiling a script.

    `trace` is None if no step was complete. `steady` is false when the script ended before its
    warm-up did, so that the trace may hold set-up work. `stopped_after` is the number of steps
    after which the script was stopped, 0 if it ended by itself. `unseen` is the number of steps
    that ended although no op was seen in any, as another thread ran them.
    """

    trace: Trace | None
    exit_code: int
    steady: bool
    stopped_after: int = 0
    unseen: int = 0


class Paging(Protocol):
    """Keeps what a script has on the device within a budget while it is recorded."""

    @property
    def table(self) -> StorageTable[Any]:
        """The script's storages."""

    def follow(self, stream: OpStream[Any]) -> Listener[Any]:
        """Return the listener that does so on an op stream over `table`."""


def profile_script(
    script: Script,
    *,
    steps: int,
    warmup: int,
    go_on: bool,
    ends_process: bool = False,
    paging: Paging | None = None,
) -> Profile:
    """Run a script and record `steps` steps after `warmup` others.

    On an accelerator three more pass before them, of which the second is timed; not with `paging`,
    where a step without it would not fit. The script is stopped once they are recorded, unless
    `go_on`. Raises InputMissingError if there is no such script; the script's own errors become
    its exit code.
    """
    warm_up_dispatch()
    table: StorageTable[Any] = StorageTable(Block) if paging is None else paging.table
    device = tracked_device()
    clock = clock_for(device)
    meter_step = min(max(warmup - 1, 1), warmup + steps - 1)
    # The device may be slower while each op is recorded: its own pace is that of a step before
    # which another passes, in which the host gains the lead that it has in a long run.
    timed = not clock.is_hosts and paging is None
    lead_step = max(warmup, meter_step + 1) if timed else -1
    plain_step = lead_step + 1 if timed else -1
    # What was made in that step is met in the next one, so that it is not taken for new later.
    last = (warmup if plain_step < 0 else plain_step + 2) + steps
    modules = ModuleWatch()
    recorder: Recorder | None = None
    finished = False

    def step_ended(optimizer: torch.optim.Optimizer) -> None:
        nonlocal finished
        if recorder is None or finished:
            return
        recorder.after_optimizer(optimizer)
        stream.end_step()
        stream.paused = lead_step <= stream.step <= plain_step
        if stream.step == last:
            finished = True
            stream.listeners = pagers
            if not go_on:
                raise StopScript

    def step_begins(optimizer: torch.optim.Optimizer) -> None:
        if recorder is not None and not finished:
            recorder.before_optimizer(optimizer)

    optimizers = OptimizerWatch(step_begins, step_ended)
    recorder = Recorder(
        table=table,
        modules=modules,
        optimizers=optimizers,
        clock=clock,
        new_meter=partial(meter_for, device),
        keep=steps,
        unseen_ns=unseen_ns() if device.type == "cpu" else 0,
        meter_step=meter_step,
        plain_step=plain_step,
        views_read=not can_swap(device),
        leaves_gaps=paging is None or clock.is_hosts,
    )
    stream: OpStream[Any] = OpStream(table, [])
    pagers = () if paging is None else (paging.follow(stream),)
    stream.listeners = (*pagers, recorder)
    with modules.installed(), intercepting(stream, optimizers), closing(recorder):
        exit_code = run_script(script, ends_process=ends_process)
    trace = to_trace(recorder, **_machine(script, device)) if recorder.steps else None
    return Profile(
        trace,
        exit_code,
        steady=stream.step > warmup,
        stopped_after=stream.step if finished and not go_on else 0,
        unseen=0 if recorder.steps else stream.step,
    )


def warm_up_dispatch() -> None:
    """Pay for what torch imports on the first op under a dispatch mode."""
    table: StorageTable[Block] = StorageTable(Block)
    with OpStream(table, []):
        torch.zeros(1) + 1


def _machine(script: Script, device: torch.device) -> dict[str, object]:
    on_cpu = device.type == "cpu"
    return {
        "device": _cpu_name() if on_cpu else torch.cuda.get_device_name(),
        "device_memory_bytes": _cpu_memory() if on_cpu else torch.accelerator.get_memory_info()[1],
        "torch_version": torch.__version__,
        "allocator": "cpu" if on_cpu else os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default"),
        "rank": number_in(os.environ, "RANK"),
        "world_size": number_in(os.environ, "WORLD_SIZE", default=1),
        "command": script.command,
    }


def _cpu_name() -> str:
    return f"cpu ({platform.machine()}, {os.cpu_count()} cores)"


def _cpu_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
