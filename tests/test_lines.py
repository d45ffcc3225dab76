"""Text files with numbered complaints."""

from __future__ import annotations

import pytest

from teraio.profiler.errors import BadInputError
from teraio.profiler.importers.lines import lines_of


def test_lines_have_no_ends_and_none_is_empty_at_the_end() -> None:
    file = lines_of("f", b"a \r\n\nb\n\n\n")
    assert file.lines == ("a", "", "b")
    assert len(file) == 3


def test_complaints_count_lines_from_1_and_shorten_long_ones() -> None:
    file = lines_of("f", b"a\n" + b"x" * 200)
    with pytest.raises(BadInputError, match=r"^`f`, line 2: expected y, not `x{60}\.\.\.`$"):
        file.unlike(1, "y")
    with pytest.raises(BadInputError, match=r"^`f`, line 3: the file ends where y should be$"):
        file.unlike(2, "y")


@pytest.mark.parametrize("text", ["", " 1", "1.0", "+1", "1_0", "٣", "0x1", "1" * 31])
def test_only_plain_numbers_are_numbers(text: str) -> None:
    with pytest.raises(BadInputError, match="line 1: expected a whole number as it, not `a`"):
        lines_of("f", b"a").whole(0, text, "it", most=10)


def test_numbers_have_bounds() -> None:
    file = lines_of("f", b"a")
    assert file.whole(0, "007", "it", most=7) == 7
    with pytest.raises(BadInputError, match="it is 8, not from 0 to 7"):
        file.whole(0, "8", "it", most=7)
    with pytest.raises(BadInputError, match="it is -2, not from -1 to 7"):
        file.whole(0, "-2", "it", most=7, least=-1)


def test_no_text_is_refused() -> None:
    with pytest.raises(BadInputError, match="`f` is empty"):
        lines_of("f", b"\n")
    with pytest.raises(BadInputError, match="`f`, line 2: expected text"):
        lines_of("f", b"a\n\xff")
