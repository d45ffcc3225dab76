"""Plans and traces made to do harm: a documented end, bounded memory, and no code run.

What reads them is tested for each kind of damage elsewhere; this is the whole command.
"""

from __future__ import annotations

import ast
import io
import json
import resource
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli import here
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import training_trace

from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan_file import write_plan
from teraio.profiler.trace import write_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
DOCUMENTED = {0, 2, 65, 66, 69, 70, 73, 74, 76, 77}
MEMORY = 2 << 30
"""Bytes that a command may map on top of what its process has."""

NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2**31 - 1, 2**31, 2**53, 2**61, 2**63 - 1, 2**63, 2**64, 10**400, -(2**63), 0.5,
    1e308, -0.0,
)  # fmt: skip
WORDS = (
    "", "x" * 100_000, "\x00", "\ud800", "../../etc/passwd", "{0.__class__}", "%s%n", "\x1b[2J",
    "(a+)+$", "__import__('os')", "\N{SNOWMAN}" * 1000, "ssd", "host",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, [], {}, [[]], {"": None})
PUTS = ("[" * 100_000, "9" * 10_000, '"', "NaN", "1e999", "\x00", "}")


@contextmanager
def bounded() -> Iterator[None]:
    """Let this process map so much more memory and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def require_documented(*words: str | Path) -> None:
    with bounded():
        done = here(*words)
    said = done.stderr.decode()
    assert done.returncode in DOCUMENTED, said
    assert "Traceback" not in said
    if done.returncode:
        assert said.startswith("error: "), said
    assert len(said) < 5000, "one may read it"
    assert "\x1b" not in said + done.stdout.decode(), "a terminal would obey"


TRACE = training_trace(3)
PLAN = make_plan(
    TRACE, sha256="0" * 64, memory_bytes=20 << 20, hardware=ASSUMED, policy="greedy",
    or_minimum=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    with (folder / "good.parquet").open("wb") as sink:
        write_trace(TRACE, sink)
    write_plan(PLAN, folder / "good.json")
    assert PLAN.actions
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON document."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*path, key))


def changed(document: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """The document with the value at `path` replaced, removed or doubled."""
    copy = json.loads(json.dumps(document))
    if not path:
        return value
    *way, last = path
    inner = copy
    for key in way:
        inner = inner[key]
    if how == "remove":
        del inner[last]
    elif how == "double" and isinstance(inner, list):
        inner.insert(last, inner[last])
    else:
        inner[last] = value
    return copy


@dataclass(frozen=True)
class Damage:
    """What is done to one place of a plan: numbers that choose the place, how, and the value."""

    place: int
    how: str
    choice: int

    def to(self, document: Any) -> Any:
        every = list(places(document))
        pool = NUMBERS + WORDS + OTHERS
        value = pool[self.choice % len(pool)]
        return changed(document, every[self.place % len(every)], self.how, value)


DAMAGES = st.builds(
    Damage,
    st.integers(0, 10_000),
    st.sampled_from(("replace", "replace", "remove", "double")),
    st.integers(0, 1000),
)


@examples(20)
@given(
    damages=st.lists(DAMAGES, min_size=1, max_size=3),
    put=st.integers(0, len(PUTS) - 1),
    at=st.none() | st.floats(0, 1),
)
def test_a_hostile_plan(folder: Path, damages: list[Damage], put: int, at: float | None) -> None:
    """A few values are changed, and perhaps something in the text as well."""
    document = json.loads((folder / "good.json").read_text())
    for damage in damages:
        document = damage.to(document)
    text = json.dumps(document)
    if at is not None:
        middle = round(at * len(text))
        text = text[:middle] + PUTS[put] + text[middle:]
    (folder / "bad.json").write_text(text)
    require_documented("inspect", folder / "bad.json")
    require_documented("simulate", folder / "good.parquet", folder / "bad.json")


@st.composite
def hostile_bytes(draw: st.DrawFn) -> bytes:
    """A trace with bytes overwritten, left out or put in."""
    sink = io.BytesIO()
    write_trace(TRACE, sink)
    content = bytearray(sink.getvalue())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content) - 1))
        length = draw(st.integers(0, 8))
        content[at : at + length] = draw(st.binary(max_size=8))
    return bytes(content)


@examples(20)
@given(content=hostile_bytes())
def test_damaged_bytes(folder: Path, content: bytes) -> None:
    trace = folder / "bad.parquet"
    trace.write_bytes(content)
    require_documented("inspect", trace)


@dataclass(frozen=True)
class Change:
    """A value put into one row of a column, or into all from it on: `choice` of what fits."""

    column: str
    row: int
    choice: int
    further: bool

    def value(self, type_: pa.DataType) -> Any:
        if not pa.types.is_integer(type_):
            pool: list[Any] = [word for word in WORDS if word != "\ud800"]
        else:
            most = 2**63 if type_ == pa.int64() else 2**31
            pool = [n for n in NUMBERS if isinstance(n, int) and -most <= n < most]
        return [*pool, None][self.choice % (len(pool) + 1)]

    def to(self, table: pa.Table) -> pa.Table:
        type_ = TRACE.table.schema.field(self.column).type
        values = table.column(self.column).to_pylist()
        end = len(values) if self.further else self.row + 1
        values[self.row : end] = [self.value(type_)] * (end - self.row)
        array = pa.array(values, type=type_ if pa.types.is_integer(type_) else pa.string())
        index = table.column_names.index(self.column)
        return table.set_column(index, pa.field(self.column, array.type), array)


CHANGES = st.builds(
    Change,
    st.sampled_from(TRACE.table.column_names),
    st.integers(0, TRACE.table.num_rows - 1),
    st.integers(0, 1000),
    st.booleans(),
)


def written(table: pa.Table) -> bytes:
    good, sink = io.BytesIO(), io.BytesIO()
    write_trace(TRACE, good)
    metadata = pq.read_table(good).schema.metadata
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return sink.getvalue()


@examples(12)
@given(made=st.lists(CHANGES, min_size=1, max_size=3))
def test_a_trace_that_makes_no_sense(folder: Path, made: list[Change]) -> None:
    table = TRACE.table
    for change in made:
        table = change.to(table)
    trace = folder / "bad.parquet"
    trace.write_bytes(written(table))
    require_documented("inspect", trace)
    plan = ["--force", "-o", folder / "new.json", "--memory", "60%", "--or-minimum"]
    require_documented("plan", trace, *plan, "--policy", "greedy", "--time-limit", "2")
    require_documented("simulate", trace, folder / "good.json")


# Code

PACKAGES = ("profiler", "planner", "executor", "teraio_cli")
LOADERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"eval", "exec", "system", "popen", "load", "loads", "unpickle"}
ALLOWED = {
    ("profiler/script.py", "exec"),  # the script that the user names
    ("planner/fields.py", "json.loads"),
    ("profiler/trace.py", "json.loads"),
    ("executor/reference.py", "json.loads"),
}


def called(node: ast.Call) -> str:
    """The last name of what is called, or with `json.` before it where that is its module."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id
    if not isinstance(function, ast.Attribute):
        return ""
    of = function.value
    return (
        f"json.{function.attr}" if isinstance(of, ast.Name) and of.id == "json" else function.attr
    )


def loading(tree: ast.AST) -> Iterator[str]:
    """What in a module could run code that is data, and what reads data at all."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from LOADERS.intersection(name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from LOADERS.intersection({(node.module or "").partition(".")[0]})
        elif isinstance(node, ast.Call):
            name = called(node)
            if name.removeprefix("json.") in CALLS:
                yield name
            if any(k.arg == "shell" or k.arg == "allow_pickle" for k in node.keywords):
                yield f"{name} with shell or pickle"


def test_nothing_that_is_read_can_run() -> None:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            found |= {(str(path.relative_to(ROOT)), name) for name in loading(tree)}
    assert found <= ALLOWED
    assert found >= {("profiler/script.py", "exec"), ("planner/fields.py", "json.loads")}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import pickle", ["pickle"]),
        ("from marshal import loads", ["marshal"]),
        ("torch.load(path)", ["load"]),
        ("json.loads(text)", ["json.loads"]),
        ("run('x', shell=True)", ["run with shell or pickle"]),
        ("open(path).read()", []),
    ],
)
def test_what_is_looked_for_is_found(text: str, names: list[str]) -> None:
    assert list(loading(ast.parse(text))) == names
