"""The plan as plain data: what moves where and when in one steady training step.

An op index counts the ops of the step from 0. `gone_by_op` or `needed_by_op` that is not larger
than the `after_op` of the same action means that op of the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SSD: Final = "ssd"
HOST: Final = "host"

MIN_TENSOR_BYTES: Final = 1 << 20
"""Smaller tensors stay: TERAIO's planner, too, leaves those under about 2 MB alone, and at 1 MiB
a PCIe 4.0 drive spends over a tenth of a transfer on its latency."""


@dataclass(frozen=True)
class Ssd:
    """What the SSDs of one rank give together: bytes per second, and ns before the first byte.

    They are `drives` alike. `tbw_bytes` is what may be written to each of them in its life by
    its data sheet ("TBW"); None if nobody said.
    """

    read_bytes_per_s: int
    write_bytes_per_s: int
    latency_ns: int
    drives: int = 1
    tbw_bytes: int | None = None


@dataclass(frozen=True)
class HostLink:
    """What the link between device and host memory gives, in bytes per second each way."""

    to_host_bytes_per_s: int
    to_gpu_bytes_per_s: int


@dataclass(frozen=True)
class Hardware:
    """The channels a plan may use; `source` says how each figure was obtained."""

    ssd: Ssd
    host_link: HostLink
    source: dict[str, str]


@dataclass(frozen=True)
class Budget:
    """Bytes of device memory and of host memory the step may use.

    `memory_bytes` is what the user allowed; the plan itself keeps `margin` (a share) below it.
    """

    memory_bytes: int
    host_bytes: int
    margin: float

    @property
    def planned_bytes(self) -> int:
        """The device bytes the plan may use: the budget less the margin."""
        return self.memory_bytes - int(self.memory_bytes * self.margin)


@dataclass(frozen=True)
class Controls:
    """What the user ruled about moves, beside the budget.

    Only `tiers` are used. Tensors that a regular expression of `keep` matches stay on the device,
    as do those that take less than `min_tensor_bytes`; those that one of `never_ssd` matches may
    go to host memory only (what is matched: `controls.texts`). A step writes at most
    `ssd_write_bytes` to the SSD; None sets no limit.
    """

    tiers: tuple[str, ...] = (SSD, HOST)
    keep: tuple[str, ...] = ()
    never_ssd: tuple[str, ...] = ()
    min_tensor_bytes: int = MIN_TENSOR_BYTES
    ssd_write_bytes: int | None = None


NO_CONTROLS: Final = Controls(min_tensor_bytes=0)
"""Nothing is ruled: what a plan file that records no controls is read as."""


@dataclass(frozen=True)
class Policy:
    """How the plan was found."""

    name: str
    seconds: float
    solver: str = ""
    status: str = ""
    gap: float | None = None


@dataclass(frozen=True)
class Traffic:
    """Bytes that one step moves between the device and one tier."""

    to_tier_bytes: int
    to_gpu_bytes: int
    dropped_bytes: int


@dataclass(frozen=True)
class Prediction:
    """What the plan will cost: times of one steady step in ns, and bytes."""

    ideal_ns: int
    step_ns: int
    stall_ns: int
    lower_bound_ns: int
    peak_bytes: int
    ssd: Traffic
    host: Traffic


@dataclass(frozen=True)
class Program:
    """The op sequence the plan belongs to, one entry per op.

    `name` indexes `names`. `signature` is the CRC-32 of the op's name, shapes and dtypes.
    `new_granules` are the bytes of storages the op creates and `workspace_granules` the bytes
    alive only inside it, both in units of 512 B.
    """

    names: tuple[str, ...]
    name: tuple[int, ...]
    signature: tuple[int, ...]
    new_granules: tuple[int, ...]
    workspace_granules: tuple[int, ...]

    def op_name(self, op: int) -> str:
        """Return the operator name of op number `op`."""
        return self.names[self.name[op]]


@dataclass(frozen=True)
class TraceRef:
    """Which trace a plan was made from; `steps` recorded and `ops` in the planned step."""

    sha256: str
    fingerprint: str
    steps: int
    ops: int
    program: Program


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that moves.

    `first_op` is the first op of the step that accesses it and `slot` its position among the
    storages that op accesses, in the order of its arguments and then its results: by these the
    executor finds the tensor in a running program.
    """

    id: int
    nbytes: int
    name: str
    kind: str
    first_op: int
    slot: int


@dataclass(frozen=True)
class Offload:
    """Move a tensor off the device once `after_op` has finished.

    Its bytes count until `gone_by_op` begins. With `write` false it is dropped: the copy in the
    tier is current and nothing is written.
    """

    tensor: int
    to: str
    after_op: int
    gone_by_op: int
    write: bool


@dataclass(frozen=True)
class Prefetch:
    """Bring a tensor back: its bytes count from the end of `after_op`, and it is there when
    `needed_by_op` begins.
    """

    tensor: int
    source: str
    after_op: int
    needed_by_op: int


Action = Offload | Prefetch


@dataclass(frozen=True)
class Plan:
    """A plan for one steady step; `actions` are in op order."""

    trace: TraceRef
    hardware: Hardware
    budget: Budget
    policy: Policy
    prediction: Prediction
    tensors: tuple[PlannedTensor, ...]
    actions: tuple[Action, ...]
    controls: Controls = NO_CONTROLS
