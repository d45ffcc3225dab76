"""Every error and warning that the commands can show, found in the source text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("profiler", "planner", "executor", "teraio_cli")

HOLE: Final = "\0"
"""Stands in a text for what is known only when the code runs."""

WARNING: Final = 0
"""The code of what is said and ends no command."""

_SAID: Final = ("warning: ", "note: ")

_CLASSES: Final = {"TeraioError": 1, "IllegalMoveError": 1, "MemoryError": 1}
"""Errors and their exit codes; the classes made from them are found in the source."""

_FUNCTIONS: Final = {
    ".fail": ("BadInputError", -1),
    "_fail": ("PlanCheckError", 0),
    "io_error": ("StorageError", 0),
    "._require": ("StorageError", 1),
    "._empty": ("torch", 2),
    "._diverge": ("", 0),
}
"""Functions that make an error of a text: of which class, and which of their arguments it is.

`_empty` gives torch the text of the error that a stray read raises; `_diverge` is a warning.
"""

Names = dict[str, list[ast.Assign]]


@dataclass(frozen=True, order=True)
class Message:
    """A message: the exit code it ends a command with, and its text with holes in it."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text.replace(HOLE, '...')}"

    @property
    def letters(self) -> int:
        """The number of letters that are always there."""
        return sum(map(str.isalpha, self.text))

    def fits(self, shown: str) -> bool:
        """Return whether `shown` is this message with its holes filled."""
        return _pattern(self.text).fullmatch(shown) is not None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split(HOLE))))


def messages() -> tuple[set[Message], set[str]]:
    """Return the messages, and the source of those whose words come from elsewhere."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    trees = [ast.parse(path.read_text()) for path in paths]
    codes = exit_codes(trees) | {"torch": 1, "": WARNING}
    uses = [(path, *use) for path, tree in zip(paths, trees, strict=True)
            for use in _in_module(tree, codes)]  # fmt: skip
    found: set[Message] = set()
    passed_on: set[str] = set()
    for path, code, argument, names in uses:
        for text in _texts(argument, names):
            message = Message(code, text.strip())
            if message.letters:
                found.add(message)
            else:
                passed_on.add(f"{path.relative_to(ROOT)}: {ast.unparse(argument)}")
    return found, passed_on


def exit_codes(trees: list[ast.Module]) -> dict[str, int]:
    """Return the exit code of each class of errors; one without its own has its base's."""
    codes = dict(_CLASSES)
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    known = 0
    while known < len(codes):
        known = len(codes)
        for node in classes:
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in codes:
                    codes[node.name] = _own_code(node, codes[base.id])
    return codes


def _own_code(node: ast.ClassDef, inherited: int) -> int:
    for item in node.body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "exit_code":
            return int(ast.literal_eval(item.value))
    return inherited


def _in_module(tree: ast.Module, codes: dict[str, int]) -> Iterator[tuple[int, ast.expr, Names]]:
    """Yield the code of each message, its expression and the names that may be in that."""
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef):
            nodes = list(ast.walk(scope))
            assigned = sorted(
                (node for node in nodes if isinstance(node, ast.Assign)), key=lambda n: n.lineno
            )
            for statement in nodes:
                if isinstance(statement, ast.stmt) and not hasattr(statement, "body"):
                    names = _names(assigned, statement)
                    for node in ast.walk(statement):
                        if isinstance(node, ast.Call) and node.args:
                            yield from ((*each, names) for each in _of_call(node, codes, names))


def _of_call(call: ast.Call, codes: dict[str, int], names: Names) -> Iterator[tuple[int, ast.expr]]:
    name = ast.unparse(call.func)
    name = name[name.rfind(".") :] if "." in name else name
    if name.lstrip(".") in codes:
        yield codes[name.lstrip(".")], call.args[0]
    elif name in _FUNCTIONS:
        kind, index = _FUNCTIONS[name]
        yield codes[kind], call.args[index]
    elif name == "say" and any(t.startswith(_SAID) for t in _texts(call.args[0], names)):
        yield WARNING, call.args[0]


def _names(assigned: list[ast.Assign], until: ast.stmt) -> Names:
    """Return what names may stand for in a statement, of a function's assignments in order.

    Those are all assignments before it, but only from the last one on that is in the statement's
    block, which the indentation tells.
    """
    names: Names = {}
    for node in assigned:
        if node.lineno < until.lineno and isinstance(node.targets[0], ast.Name):
            own = names.setdefault(node.targets[0].id, [])
            if node.col_offset == until.col_offset:
                own.clear()
            own.append(node)
    return names


def _texts(node: ast.expr, names: Names) -> list[str]:
    """Return the texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        return _texts(node.body, names) + _texts(node.orelse, names)
    if isinstance(node, ast.Name) and node.id in names:
        return [text for assign in names[node.id] for text in _texts(assign.value, names)]
    return [_text(node, names)]


def _text(node: ast.expr, names: Names) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, names) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, names) + _text(right, names)
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.List(elts=[first, *_])]):
            return _text(first, names) + HOLE
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.Name(id=name)]) if name in names:
            return _text(ast.Call(node.func, [names[name][0].value], []), names)
    return HOLE
