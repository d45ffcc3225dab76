"""What a launcher such as torchrun says in the environment of the processes it starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def number_in(environment: Mapping[str, str], *names: str, default: int = 0) -> int:
    """Return the first of these variables that holds a whole number; others count as not set.

    Some launchers say -1 for "none".
    """
    given = (environment.get(name, "") for name in names)
    return next((int(text) for text in given if re.fullmatch("[0-9]{1,9}", text)), default)
