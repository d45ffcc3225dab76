"""How many examples the property tests try: few enough for every change, more where asked for."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

TIMES = float(os.environ.get("EXAMPLES", "1"))
"""`EXAMPLES=10 make test` tries ten times as many of each."""


def examples(number: int, **others: Any) -> settings:
    """Return the settings of a test that takes about as many examples as `number` times TIMES.

    Examples have no deadline: what one takes depends on what else the machine does.
    """
    return settings(max_examples=max(1, round(number * TIMES)), deadline=None, **others)
