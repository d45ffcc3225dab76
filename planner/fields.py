"""Checked access to the fields of a JSON object of unknown origin."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from teraio.profiler.errors import BadInputError, InputMissingError

LARGEST_FILE: Final = 1 << 28
"""Bytes: a longer file is refused unread; the plan of a step of 136,000 ops takes a few MB."""

_LARGEST: Final = 2**63 - 1
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Fields:
    """A JSON object, its place in the file and how to report what is wrong with it."""

    values: dict[str, Any]
    place: str
    label: str
    hint: str

    def fail(self, complaint: str) -> NoReturn:
        """Raise BadInputError naming the file and the place in it."""
        msg = f"`{self.label}`: {self.place}: {complaint}"
        raise BadInputError(msg, hint=self.hint)

    def has(self, key: str) -> bool:
        """Return whether something other than null is under `key`."""
        return self.values.get(key) is not None

    def whole(self, key: str, *, least: int = 0, most: int = _LARGEST) -> int:
        """Return an integer from `least` to `most`."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"`{key}` is not a whole number")
        if not least <= value <= most:
            self.fail(f"`{key}` is {value}, not from {least} to {most}")
        return value

    def share(self, key: str) -> float:
        """Return a number from 0 to less than 1."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            self.fail(f"`{key}` is not a share from 0 to less than 1")
        return float(value)

    def text(self, key: str) -> str:
        """Return a string."""
        value = self._value(key)
        if not isinstance(value, str):
            self.fail(f"`{key}` is not a text")
        return value

    def flag(self, key: str) -> bool:
        """Return a boolean."""
        value = self._value(key)
        if not isinstance(value, bool):
            self.fail(f"`{key}` is neither true nor false")
        return value

    def one_of(self, key: str, known: tuple[str, ...]) -> str:
        """Return a string that is one of `known`."""
        value = self.text(key)
        if value not in known:
            self.fail(f"`{key}` is `{value}`, not one of {', '.join(known)}")
        return value

    def inner(self, key: str) -> Fields:
        """Return the object under `key`."""
        value = self._value(key)
        if not isinstance(value, dict):
            self.fail(f"`{key}` is not an object")
        return Fields(value, f"{self.place}.{key}", self.label, self.hint)

    def items(self, key: str) -> list[Any]:
        """Return the list under `key`."""
        value = self._value(key)
        if not isinstance(value, list):
            self.fail(f"`{key}` is not a list")
        return value

    def objects(self, key: str) -> list[Fields]:
        """Return the objects in the list under `key`."""
        found = []
        for index, value in enumerate(self.items(key)):
            place = f"{key}[{index}]"
            if not isinstance(value, dict):
                self.fail(f"`{place}` is not an object")
            found.append(Fields(value, place, self.label, self.hint))
        return found

    def texts(self, key: str) -> dict[str, str]:
        """Return the object under `key`, whose values are all strings."""
        inner = self.inner(key)
        return {name: inner.text(name) for name in inner.values}

    def _value(self, key: str) -> Any:
        if key not in self.values:
            self.fail(f"`{key}` is missing")
        return self.values[key]


def read_json(source: Path | IO[str], label: str, *, what: str, hint: str) -> Fields:
    """Read a JSON object from a path or an open text file; `what` is what it should be.

    Raises InputMissingError if there is no such file, and BadInputError if it is empty, too
    long or not a JSON object.
    """
    if isinstance(source, Path) and not source.is_file():
        msg = f"no such {what}: `{label}`"
        raise InputMissingError(msg, hint=hint)
    try:
        text = _read(source)
        if not text.strip():
            msg = f"not a {what}: `{label}` is empty"
            raise BadInputError(msg, hint=hint)
        document = json.loads(text, parse_constant=_refuse_constant)
        if _SURROGATE.search(text):  # a half of one alone cannot be printed
            json.dumps(document, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        msg = f"not a {what}: `{label}` ({_first_line(error)})"
        raise BadInputError(msg, hint=hint) from error
    if not isinstance(document, dict):
        msg = f"not a {what}: `{label}` holds no JSON object"
        raise BadInputError(msg, hint=hint)
    return Fields(document, what, label, hint)


def _read(source: Path | IO[str]) -> str:
    if isinstance(source, Path):
        with source.open(encoding="utf-8") as file:
            return _read(file)
    text = source.read(LARGEST_FILE + 1)
    if len(text) > LARGEST_FILE:
        msg = f"longer than {LARGEST_FILE} characters"
        raise ValueError(msg)
    return text


def _refuse_constant(word: str) -> NoReturn:
    msg = f"`{word}` is not a JSON number"
    raise ValueError(msg)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
