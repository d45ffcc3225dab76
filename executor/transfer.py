"""What the pager knows of bytes on their way, however they travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from teraio.profiler.errors import StorageError

if TYPE_CHECKING:
    from teraio.executor.stores.base import Extent, Store


@dataclass(frozen=True)
class TransferLabel:
    """What a transfer is for, to be named in its error: the tensor, the step and the op."""

    tensor: int
    name: str
    step: int
    op: int

    def __str__(self) -> str:
        name = f" `{self.name}`" if self.name else ""
        return f"tensor {self.tensor}{name}, step {self.step}, op {self.op}"


class Moment(Protocol):
    """A point in the device's work: all that was launched before it."""

    def wait(self) -> None:
        """Block this thread until the device has come so far."""


class Transfer(Protocol):
    """One tensor on its way."""

    nbytes: int

    def span(self) -> tuple[int, int] | None:
        """Return when its bytes began and ended to move, by the host's clock in ns.

        None where that is not known.
        """

    @property
    def done(self) -> bool:
        """Whether it is over, well or not, for the host or for all work launched from now on."""

    def wait(self) -> None:
        """Have it over before any work launched from now on; raises the StorageError it met."""

    def promote(self) -> None:
        """Move it ahead of all transfers that are not urgent, if it can still be."""

    def cancel(self) -> bool:
        """Take it back; True if nothing of it was done or will be."""


class Mover(Protocol):
    """What starts transfers between memory on the device and a store.

    Whoever starts one keeps the memory at `address` alive, and leaves it alone, until it is
    done. It begins once the device has reached `after`; None is at once.
    """

    def write(
        self,
        store: Store,
        extent: Extent,
        address: int,
        nbytes: int,
        label: TransferLabel,
        *,
        after: Moment | None = None,
    ) -> Transfer:
        """Start to write the `nbytes` bytes at `address` to an extent of that size.

        Raises StorageError if the sizes differ or the mover is closed; what goes wrong later is
        raised by `Transfer.wait`.
        """

    def read(
        self,
        store: Store,
        extent: Extent,
        address: int,
        nbytes: int,
        label: TransferLabel,
        *,
        urgent: bool = False,
        after: Moment | None = None,
    ) -> Transfer:
        """Start to read an extent of `nbytes` bytes into the memory at `address`.

        Raises as `write` does.
        """

    def close(self) -> None:
        """Finish what was started; may be called twice."""


def require_size(extent: Extent, nbytes: int, label: TransferLabel) -> None:
    """Raise StorageError unless an extent is for so many bytes."""
    if extent.nbytes != nbytes:
        msg = f"an extent of {extent.nbytes} bytes cannot hold {nbytes} bytes; {label}"
        raise StorageError(msg)
