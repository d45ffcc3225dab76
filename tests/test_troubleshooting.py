"""The page about errors and warnings has each of them, under its exit code, and no other."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from messages import ROOT, Message, messages

PAGE: Final = ROOT / "docs" / "troubleshooting.md"

PASSED_ON: Final = {
    "executor/cuda.py: msg",
    "executor/engine.py: f'{what}; {label}'",
    "executor/pager.py: f'{error}; {self._label(page)}'",
    "executor/pager.py: str(error)",
    "executor/run_folder.py: f'{what}: {name} ({error.strerror or error})'",
    "planner/check.py: fault",
    "planner/fields.py: msg",
    "planner/matching.py: str(error)",
    "teraio_cli/plan.py: made.policy.status",
    "teraio_cli/run.py: done['errors'][0]",
}
"""Errors that only pass on words which are found elsewhere. One that is not here has words that
`messages` cannot see: give it a text of its own."""

_CODE: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


found = cache(messages)


def shown() -> list[tuple[int, str]]:
    """Return the exit code and the text of each message on the page, which are in first cells."""
    entries: list[tuple[int, str]] = []
    code = -1
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = re.match(r"## (\d+):", line)
            code = int(heading[1]) if heading else -1
        elif line.startswith("| ") and code >= 0:
            cell = line.split("|")[1]
            entries += [(code, text[2].strip()) for text in _CODE.finditer(cell)]
    return entries


def meant(code: int, text: str) -> Message | None:
    """Return the message that a text on the page stands for: of those it fits the most exact."""
    fitting = [each for each in found()[0] if each.code == code and each.fits(text)]
    return max(fitting, key=lambda each: (each.letters, len(each.text)), default=None)


def test_every_message_is_on_the_page() -> None:
    there = {meant(*entry) for entry in shown()}
    assert sorted(str(message) for message in found()[0] - there) == []


def test_the_page_has_no_message_that_is_gone() -> None:
    assert [entry for entry in shown() if meant(*entry) is None] == []


def test_the_page_is_ordered_by_exit_code() -> None:
    codes = [code for code, _ in shown()]
    assert codes == sorted(codes)
    assert set(codes) == {message.code for message in found()[0]}


def test_no_message_is_twice_on_the_page() -> None:
    entries = shown()
    assert sorted(entries) == sorted(set(entries))


def test_the_words_of_every_error_are_known() -> None:
    assert found()[1] == PASSED_ON


def test_rows_have_three_cells_and_say_what_to_do() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert [row for row in rows if row.count("|") != 4 or not row.split("|")[3].strip()] == []
