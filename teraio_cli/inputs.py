"""Traces as the commands read them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from teraio_cli.outputs import input_label, open_input

if TYPE_CHECKING:
    from teraio.profiler.trace import Trace


def read_hashed(source: str) -> tuple[Trace, str]:
    """Return the trace in a file, or in stdin for `-`, and the SHA-256 of its bytes.

    Raises InputMissingError or BadInputError if it cannot be read or is no trace.
    """
    from teraio.profiler.trace import read_trace

    with open_input(source) as stream:
        trace = read_trace(stream, name=input_label(source))
        stream.seek(0)
        return trace, hashlib.file_digest(stream, "sha256").hexdigest()
