"""Text files of other tools, with errors that name the file and the line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from teraio.profiler.errors import BadInputError

MOST_BYTES: Final = 1 << 60
"""The most bytes that all tensors of an imported step may have together: an exbibyte. Sums of
sizes that are rounded up stay within 64 bits."""

MOST_NS: Final = 1 << 53
"""The longest step that is imported, in ns: 104 days, as long as `planner.step` takes."""

MOST_LINES: Final = 1 << 22
"""Lines of a file: one with more is refused unread."""

_WHOLE: Final = re.compile(r"-?[0-9]{1,30}", re.ASCII)
_SHOWN: Final = 60


@dataclass(frozen=True)
class Lines:
    """A text file in lines without their ends; `label` is how messages call it."""

    label: str
    lines: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def fail(self, index: int, complaint: str) -> NoReturn:
        """Raise BadInputError naming the file and the line at `index`, which counts from 0."""
        msg = f"`{self.label}`, line {index + 1}: {complaint}"
        raise BadInputError(msg)

    def unlike(self, index: int, expected: str) -> NoReturn:
        """Raise BadInputError: the line at `index` is not what was expected there."""
        if index >= len(self.lines):
            self.fail(index, f"the file ends where {expected} should be")
        line = self.lines[index]
        shown = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
        self.fail(index, f"expected {expected}, not `{shown}`")

    def whole(self, index: int, text: str, what: str, *, most: int, least: int = 0) -> int:
        """Return the integer `text`, found in the line at `index`, from `least` to `most`.

        Raises BadInputError if it is none or outside.
        """
        if _WHOLE.fullmatch(text) is None:
            self.unlike(index, f"a whole number as {what}")
        value = int(text)
        if not least <= value <= most:
            self.fail(index, f"{what} is {value}, not from {least} to {most}")
        return value


def lines_of(label: str, data: bytes) -> Lines:
    """Return the lines of a file's bytes; empty lines at its end are left out.

    Raises BadInputError if the file is empty, has over `MOST_LINES` lines or is not UTF-8 text.
    """
    count = data.count(b"\n")
    if count > MOST_LINES:
        msg = f"`{label}` has {count} lines, more than the {MOST_LINES} that are read"
        raise BadInputError(msg)
    try:
        lines = [line.rstrip() for line in data.decode().split("\n")]
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        msg = f"`{label}`, line {line}: expected text, not bytes that are no UTF-8"
        raise BadInputError(msg) from None
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        msg = f"`{label}` is empty"
        raise BadInputError(msg)
    return Lines(label, tuple(lines))
