"""One line of the doctor's report."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Finding:
    """What was tried and came of it; `advice` is empty where nothing is to be done."""

    name: str
    ok: bool
    found: str
    advice: str = ""


def tried(name: str, probe: Callable[[], str], advice: str) -> Finding:
    """Return what a probe found, or the first line of what it raised, with the advice."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Finding(name, ok=True, found=probe())
    except Exception as error:
        return Finding(name, ok=False, found=_cause(error), advice=advice)


def _cause(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
