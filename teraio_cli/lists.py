"""Lists with commas, as options take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from teraio.profiler.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_DIGITS: Final = 9


def split_list(option: str, text: str) -> list[str]:
    """Return the items of a list; raises UsageError, naming `option`, if one is missing."""
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        msg = f"a value of `{option}` is missing: `{text}`"
        raise UsageError(msg, hint=f"write a list as `{option} A,B,C`")
    return items


def parse_list(option: str, text: str, parse: Callable[[str], int]) -> tuple[int, ...]:
    """Return what `parse` makes of each item of a list.

    Raises UsageError, naming `option`, if one is missing or there twice, and what `parse` raises.
    """
    items = split_list(option, text)
    values = [parse(item) for item in items]
    for index, value in enumerate(values):
        if value in values[:index]:
            first = items[values.index(value)]
            msg = f"`{option}` has `{first}` and `{items[index]}`, which is the same twice"
            raise UsageError(msg, hint="give each value once")
    return tuple(values)


def parse_count(text: str) -> int:
    """Return a whole number above zero; raises UsageError."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text)):
        msg = f"not a whole number above zero: `{text}`"
        raise UsageError(msg, hint="write numbers as `1,2,4`")
    return int(text)
