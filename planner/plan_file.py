"""The plan file: JSON with one tensor and one action a line, so that `diff` and `jq` serve.

The same plan gives the same bytes: the seconds a policy took are left out (written as null and
read as 0).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from teraio.planner.controls import pattern_fault
from teraio.planner.fields import Fields, read_json
from teraio.planner.hardware import hardware_from
from teraio.planner.plan import (
    HOST,
    NO_CONTROLS,
    SSD,
    Action,
    Budget,
    Controls,
    Offload,
    Plan,
    PlannedTensor,
    Policy,
    Prediction,
    Prefetch,
    Program,
    TraceRef,
    Traffic,
)
from teraio.profiler.errors import BadInputError, InputMissingError
from teraio.profiler.trace import pack_words, unpack_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT: Final = 1
_TIERS: Final = (SSD, HOST)
_MOST_OPS: Final = 1 << 26
_HINT: Final = "a plan is the JSON file that `teraio plan` writes"


def write_plan(plan: Plan, sink: Path | IO[str]) -> None:
    """Write a plan to a path or an open text file."""
    if isinstance(sink, Path):
        with sink.open("w", encoding="utf-8", newline="\n") as file:
            write_plan(plan, file)
        return
    parts = {
        "format": _line(f"teraio-plan/{FORMAT}"),
        "trace": _block("{", _trace_lines(plan.trace), "}"),
        "hardware": _line(asdict(plan.hardware)),
        "budget": _line(asdict(plan.budget)),
        "controls": _line(asdict(plan.controls)),
        "policy": _line(asdict(plan.policy) | {"seconds": None}),
        "prediction": _line(asdict(plan.prediction)),
        "tensors": _block("[", (_line(asdict(tensor)) for tensor in plan.tensors), "]"),
        "actions": _block("[", (_line(_action_object(a)) for a in plan.actions), "]"),
    }
    body = ",\n".join(f" {_line(key)}: {part}" for key, part in parts.items())
    sink.write(f"{{\n{body}\n}}\n")


def read_plan(source: Path | IO[str], *, name: str = "") -> Plan:
    """Read a plan from a path or an open text file; `name` stands for it in messages.

    Raises InputMissingError if there is no such file, and BadInputError if it is not a plan of
    a format known here or says something impossible.
    """
    label = name or str(source)
    fields = read_json(source, label, what="plan", hint=_HINT)
    _require_format(fields)
    trace = _trace(fields.inner("trace"))
    tensors = tuple(_tensor(item, trace.ops) for item in fields.objects("tensors"))
    known = {tensor.id for tensor in tensors}
    if len(known) < len(tensors):
        fields.fail("a tensor is listed twice")
    actions = tuple(_action(item, trace.ops, known) for item in fields.objects("actions"))
    if any(a.after_op > b.after_op for a, b in pairwise(actions)):
        fields.fail("the actions are not in op order")
    return Plan(
        trace=trace,
        hardware=hardware_from(fields.inner("hardware")),
        budget=_budget(fields.inner("budget")),
        policy=_policy(fields.inner("policy")),
        prediction=_prediction(fields.inner("prediction")),
        tensors=tensors,
        actions=actions,
        controls=_controls(fields.inner("controls")) if fields.has("controls") else NO_CONTROLS,
    )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Raises InputMissingError if there is no such file.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        msg = f"no such file: `{path}`"
        raise InputMissingError(msg) from error


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _block(opening: str, lines: Iterable[str], closing: str) -> str:
    body = ",\n  ".join(lines)
    return f"{opening}\n  {body}\n {closing}" if body else f"{opening}{closing}"


def _trace_lines(trace: TraceRef) -> list[str]:
    program = trace.program
    packed = {
        "names": program.names,
        "name": pack_words(program.name),
        "signature": pack_words(program.signature),
        "new_granules": pack_words(program.new_granules),
        "workspace_granules": pack_words(program.workspace_granules),
    }
    values: Mapping[str, Any] = {
        "sha256": trace.sha256,
        "fingerprint": trace.fingerprint,
        "steps": trace.steps,
        "ops": trace.ops,
        "program": packed,
    }
    return [f"{_line(key)}: {_line(value)}" for key, value in values.items()]


def _action_object(action: Action) -> dict[str, Any]:
    if isinstance(action, Offload):
        return {
            "tensor": action.tensor,
            "do": "offload",
            "to": action.to,
            "after_op": action.after_op,
            "gone_by_op": action.gone_by_op,
            "write": action.write,
        }
    return {
        "tensor": action.tensor,
        "do": "prefetch",
        "from": action.source,
        "after_op": action.after_op,
        "needed_by_op": action.needed_by_op,
    }


def _require_format(fields: Fields) -> None:
    text = fields.values.get("format")
    match = re.fullmatch(r"teraio-plan/([1-9]\d{0,8})", text) if isinstance(text, str) else None
    if match is None:
        msg = f"not a plan: `{fields.label}` is another kind of JSON file"
        raise BadInputError(msg, hint=_HINT)
    version = int(match[1])
    if version > FORMAT:
        msg = f"`{fields.label}` has plan format {version}; this teraio reads up to {FORMAT}"
        raise BadInputError(msg, hint="upgrade teraio, or make the plan again with this one")


def _trace(fields: Fields) -> TraceRef:
    ops = fields.whole("ops", least=1, most=_MOST_OPS)
    return TraceRef(
        sha256=fields.text("sha256"),
        fingerprint=fields.text("fingerprint"),
        steps=fields.whole("steps", least=1),
        ops=ops,
        program=_program(fields.inner("program"), ops),
    )


def _program(fields: Fields, ops: int) -> Program:
    names = fields.items("names")
    if not all(isinstance(name, str) for name in names):
        fields.fail("`names` holds something that is not a text")
    name = _words(fields, "name", ops)
    if name and max(name) >= len(names):
        fields.fail("`name` points past the end of `names`")
    return Program(
        names=tuple(names),
        name=name,
        signature=_words(fields, "signature", ops, optional=True),
        new_granules=_words(fields, "new_granules", ops),
        workspace_granules=_words(fields, "workspace_granules", ops),
    )


def _words(fields: Fields, key: str, ops: int, *, optional: bool = False) -> tuple[int, ...]:
    text = fields.text(key)
    try:
        words = unpack_words(text, limit=4 * ops + 4)
    except ValueError as error:
        fields.fail(f"`{key}` cannot be unpacked ({error})")
    if len(words) != ops and not (optional and not words):
        fields.fail(f"`{key}` has {len(words)} entries for {ops} ops")
    return words


def _budget(fields: Fields) -> Budget:
    return Budget(
        memory_bytes=fields.whole("memory_bytes"),
        host_bytes=fields.whole("host_bytes"),
        margin=fields.share("margin"),
    )


def _controls(fields: Fields) -> Controls:
    limited = fields.has("ssd_write_bytes")
    return Controls(
        tiers=_strings(fields, "tiers", _TIERS),
        keep=_patterns(fields, "keep"),
        never_ssd=_patterns(fields, "never_ssd"),
        min_tensor_bytes=fields.whole("min_tensor_bytes"),
        ssd_write_bytes=fields.whole("ssd_write_bytes") if limited else None,
    )


def _strings(fields: Fields, key: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    found = fields.items(key)
    for value in found:
        if not isinstance(value, str) or (known and value not in known):
            fields.fail(f"`{key}` holds {_line(value)}, which is none of its values")
    return tuple(found)


def _patterns(fields: Fields, key: str) -> tuple[str, ...]:
    patterns = _strings(fields, key)
    for pattern in patterns:
        complaint = pattern_fault(pattern)
        if complaint:
            fields.fail(f"`{key}` holds `{pattern}`, no regular expression: {complaint}")
    return patterns


def _policy(fields: Fields) -> Policy:
    gap = fields.values.get("gap")
    return Policy(
        name=fields.text("name"),
        seconds=0.0,
        solver=fields.text("solver"),
        status=fields.text("status"),
        gap=None if gap is None else fields.share("gap"),
    )


def _prediction(fields: Fields) -> Prediction:
    return Prediction(
        ideal_ns=fields.whole("ideal_ns"),
        step_ns=fields.whole("step_ns"),
        stall_ns=fields.whole("stall_ns"),
        lower_bound_ns=fields.whole("lower_bound_ns"),
        peak_bytes=fields.whole("peak_bytes"),
        ssd=_traffic(fields.inner("ssd")),
        host=_traffic(fields.inner("host")),
    )


def _traffic(fields: Fields) -> Traffic:
    return Traffic(
        to_tier_bytes=fields.whole("to_tier_bytes"),
        to_gpu_bytes=fields.whole("to_gpu_bytes"),
        dropped_bytes=fields.whole("dropped_bytes"),
    )


def _tensor(fields: Fields, ops: int) -> PlannedTensor:
    return PlannedTensor(
        id=fields.whole("id"),
        nbytes=fields.whole("nbytes"),
        name=fields.text("name"),
        kind=fields.text("kind"),
        first_op=fields.whole("first_op", most=ops - 1),
        slot=fields.whole("slot"),
    )


def _action(fields: Fields, ops: int, known: set[int]) -> Action:
    tensor = fields.whole("tensor")
    if tensor not in known:
        fields.fail(f"tensor {tensor} is not among the plan's tensors")
    after_op = fields.whole("after_op", most=ops - 1)
    if fields.one_of("do", ("offload", "prefetch")) == "offload":
        return Offload(
            tensor=tensor,
            to=fields.one_of("to", _TIERS),
            after_op=after_op,
            gone_by_op=fields.whole("gone_by_op", most=ops - 1),
            write=fields.flag("write"),
        )
    return Prefetch(
        tensor=tensor,
        source=fields.one_of("from", _TIERS),
        after_op=after_op,
        needed_by_op=fields.whole("needed_by_op", most=ops - 1),
    )
