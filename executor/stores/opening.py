"""Which stores a run uses, opened and large enough for its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from teraio.executor.stores.base import PIECE_BYTES
from teraio.executor.stores.emulated import EmulatedDrive, EmulatedStore
from teraio.executor.stores.host import HostStore
from teraio.executor.stores.posix import ALIGNMENT, PosixStore
from teraio.executor.stores.space import round_up
from teraio.planner.plan import HOST, SSD, Offload, Plan
from teraio.profiler.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from teraio.executor.device import Device
    from teraio.executor.stores.base import Store
    from teraio.executor.stores.memory import Reach


LARGE_PIECE_BYTES: Final = 32 << 20
"""Bytes of a copy by the GPU's own engines: far more than what starting one takes."""


@dataclass(frozen=True)
class StoreOptions:
    """Where offloaded bytes go.

    `folders` are on the SSDs; `io` is `auto`, `gds` or `posix`; an `emulated` drive takes the
    place of the folders.
    """

    folders: Sequence[Path]
    io: str = "auto"
    rank: int = 0
    checksums: bool = False
    emulated: EmulatedDrive | None = None


@dataclass(frozen=True)
class Room:
    """Bytes taken in each tier at once; in host memory no more than its limit later."""

    ssd_bytes: int = 0
    host_bytes: int = 0
    host_limit_bytes: int = 0


def room_for(plan: Plan) -> Room:
    """Return the room a plan needs if every tensor it moves is away at once."""
    limit = plan.budget.host_bytes
    return Room(tier_bytes(plan, SSD), min(limit, tier_bytes(plan, HOST)), limit)


def open_stores(
    room: Room, options: StoreOptions, device: Device, stack: ExitStack
) -> dict[str, Store]:
    """Open the stores; they close with `stack`. What no plan moves goes to the first.

    Raises StorageError with the needed and the free bytes if a tier has too little room, and
    where `options.io` is not to be had.
    """
    stores: dict[str, Store] = {}
    nbytes = room.ssd_bytes
    piece_bytes = LARGE_PIECE_BYTES if device.runs_ahead else PIECE_BYTES
    if options.emulated is not None:
        stores[SSD] = EmulatedStore(
            options.emulated,
            nbytes,
            piece_bytes=piece_bytes,
            checksums=options.checksums,
            reach=device.reach,
        )
        stack.callback(stores[SSD].close)
    elif options.folders:
        on_gpu = device.torch_device.type == "cuda"
        stores[SSD] = open_ssd(nbytes, options, device.reach, on_gpu=on_gpu)
        stack.callback(stores[SSD].close)
    if room.host_limit_bytes and (room.host_bytes or not nbytes):
        stores[HOST] = HostStore(
            room.host_bytes,
            limit_bytes=room.host_limit_bytes,
            piece_bytes=piece_bytes,
            checksums=options.checksums,
            reach=device.reach,
        )
        stack.callback(stores[HOST].close)
    # Host memory is faster, but with a plan for the drive it is there for its plan alone.
    return stores if nbytes else dict(reversed(stores.items()))


def open_ssd(nbytes: int, options: StoreOptions, reach: Reach, *, on_gpu: bool) -> PosixStore:
    """Open the store of `options.folders` with room for `nbytes`.

    Raises StorageError as `open_stores` does.
    """
    if options.io == "gds" and not on_gpu:
        msg = "GPUDirect Storage is not to be had: there is no GPU"
        raise StorageError(msg, hint="use `--io auto` or `--io posix`")
    if options.io == "gds" or (options.io == "auto" and on_gpu):
        try:
            return _open_kvikio(nbytes, options, reach)
        except StorageError:
            if options.io == "gds":
                raise
    return PosixStore(
        options.folders, nbytes, options.rank, checksums=options.checksums, reach=reach
    )


def _open_kvikio(nbytes: int, options: StoreOptions, reach: Reach) -> PosixStore:
    from teraio.executor.stores.kvikio import GDS, KvikioStore

    store = KvikioStore(
        options.folders, nbytes, options.rank, reach=reach, checksums=options.checksums
    )
    if options.io == "gds" and store.io_path != GDS:
        store.close()
        msg = f"GPUDirect Storage is not to be had: bytes would move by `{store.io_path}`"
        hint = "`teraio doctor` says what is missing; use `--io auto` or `--io posix`"
        raise StorageError(msg, hint=hint)
    return store


def tier_bytes(plan: Plan, tier: str) -> int:
    """Return the bytes a tier must hold if every tensor the plan sends there is there at once."""
    moved = {a.tensor for a in plan.actions if isinstance(a, Offload) and a.to == tier}
    return sum(round_up(t.nbytes, ALIGNMENT) for t in plan.tensors if t.id in moved)
