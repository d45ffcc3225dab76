"""Scripts profiled, planned for and run under the plan, all in the process of the test."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from teraio.executor.session import Run, RunOptions
from teraio.executor.stores.opening import StoreOptions
from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan import Controls, Plan
from teraio.planner.step import load_step, peak
from teraio.profiler.script import Script, run_script
from teraio.profiler.session import Profile, profile_script
from teraio.profiler.trace import Trace

HEAD = """
import torch
from torch import nn
from results import kept
torch.manual_seed(0)
torch.set_num_threads(1)  # with several, the bits may change when the machine is busy
"""


@dataclass
class Done:
    """How a run under a plan ended, and what the script kept."""

    exit_code: int
    report: dict[str, Any]
    kept: dict[str, Any]
    told: list[str] = field(default_factory=list)


class Home:
    """A folder with scripts. A script puts what it finds into `results.kept`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ssd = folder / "ssd"
        self.ssd.mkdir(exist_ok=True)

    def script(self, text: str, *arguments: str) -> Script:
        path = self.folder / "train.py"
        path.write_text(HEAD + text)
        return Script(str(path), arguments)

    def plainly(self, text: str) -> dict[str, Any]:
        with results() as kept:
            assert run_script(self.script(text)) == 0
        return kept

    def profile(
        self, text: str, *, steps: int = 2, warmup: int = 2, go_on: bool = True
    ) -> tuple[Profile, dict[str, Any]]:
        with results() as kept:
            made = profile_script(self.script(text), steps=steps, warmup=warmup, go_on=go_on)
        return made, kept

    def trace(self, text: str) -> Trace:
        made, _ = self.profile(text, go_on=False)
        assert made.trace is not None
        return made.trace

    def plan(
        self,
        trace: Trace,
        share: float = 0.5,
        *,
        host_bytes: int = 0,
        never_ssd: tuple[str, ...] = (),
    ) -> Plan:
        return make_plan(
            trace,
            sha256="0" * 64,
            memory_bytes=int(peak(load_step(trace)) * share),
            hardware=ASSUMED,
            host_bytes=host_bytes,
            policy="greedy",
            bound_ns=1,
            or_minimum=True,
            controls=Controls(min_tensor_bytes=1, never_ssd=never_ssd),
        )

    def run(
        self,
        plan: Plan,
        text: str,
        *,
        restore: bool = True,
        expected: Sequence[str] = (),
        **options: Any,
    ) -> Done:
        told: list[str] = []
        stores = StoreOptions(**{"folders": [self.ssd], **options})
        chosen = RunOptions(stores, expected=expected)
        with results() as kept, Run(plan, chosen, told.append) as run:
            run.restore = restore
            exit_code = run_script(self.script(text))
        return Done(exit_code, run.report(), kept, told)


def with_memory(plan: Plan, memory_bytes: int) -> Plan:
    """The plan with another budget, which it was not made for."""
    return replace(plan, budget=replace(plan.budget, memory_bytes=memory_bytes))


@contextmanager
def results() -> Iterator[dict[str, Any]]:
    module: Any = types.ModuleType("results")
    module.kept = {}
    sys.modules["results"] = module
    try:
        yield module.kept
    finally:
        del sys.modules["results"]


def bits(value: Any) -> Any:
    """Everything there is to a value, so that equal bits compare equal, NaN or not."""
    if isinstance(value, torch.Tensor):
        value = value.detach().to_dense()
        raw = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), raw
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value
