"""From the recorder's steps to a trace."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from teraio.profiler.fitting import fitted
from teraio.profiler.recorder import Facts, Recorder, StepRecord
from teraio.profiler.trace import SCHEMA, Trace, TraceInfo, fingerprint


def to_trace(recorder: Recorder, **machine: Any) -> Trace:
    """Build the trace of the steps a recorder kept, the oldest numbered 0.

    `machine` are the fields of TraceInfo that are not found in the recording.
    """
    steps = list(recorder.steps)
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for number, step in enumerate(steps):
        _append_step(columns, number, step, recorder)
    last = steps[-1].ops
    signatures = tuple(op.signature for op in last)
    info = TraceInfo(
        steps=len(steps),
        fingerprint=fingerprint((op.name for op in last), signatures),
        signatures=signatures,
        pinned=frozenset(i for i in set(columns["tensor"]) - {None} if recorder.facts[i].pinned),
        **machine,
    )
    return Trace(pa.table(columns, schema=SCHEMA), info)


def _append_step(
    columns: dict[str, list[Any]], number: int, step: StepRecord, recorder: Recorder
) -> None:
    used = {block for op in step.ops for block, _ in op.accesses}
    starts, durations = step.starts, step.durations
    if recorder.plain_ns:
        starts, durations = fitted(starts, durations, recorder.plain_ns)
    idle = [block for block in step.alive_at_start if block not in used and block in recorder.facts]
    for index, op in enumerate(step.ops):
        accesses: list[tuple[int | None, str | None]] = [*op.accesses]
        if index == 0:
            accesses += [(block, "none") for block in idle]
        for block, access in accesses or [(None, None)]:
            facts = Facts(0) if block is None else recorder.facts[block]
            row = (
                number, index, op.name, op.phase, op.module, starts[index],
                durations[index], recorder.workspace.get(op.signature, 0), block, access,
                facts.nbytes, facts.kind, facts.name, _birth(facts, step.number),
                _death(facts, step.number),
            )  # fmt: skip
            for name, value in zip(SCHEMA.names, row, strict=True):
                columns[name].append(value)


def _birth(facts: Facts, step: int) -> int | None:
    born_here = facts.born is not None and facts.born[0] == step
    older = facts.kind == "parameter" and not facts.made
    if facts.born is None or not born_here or older:
        return None
    return facts.born[1]


def _death(facts: Facts, step: int) -> int | None:
    if facts.died is None or facts.died[0] != step:
        return None
    return max(facts.died[1], 0)
