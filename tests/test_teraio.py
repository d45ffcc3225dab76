"""TERAIO's `semantics.in` as a trace: what is taken over, and what is refused with its line."""

from __future__ import annotations

import gzip
import io
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from example_counts import examples
from foreign import TOY, Foreign, foreign_steps
from hypothesis import given

from teraio.planner.copies import families
from teraio.planner.step import Step, idle_intervals, load_step, peak
from teraio.profiler.errors import BadInputError, UsageError
from teraio.profiler.importers import teraio
from teraio.profiler.importers.teraio import Semantics, read_semantics, trace_of

LLAMA = Path(__file__).parent / "data" / "teraio-llama.semantics.in.gz"
GIB = 1 << 30
TEXT = """\
0:CPU,1:CUDA,21:STORAGE
4,9,
4
4|1000|0:1:0,3:1:0
6|2000|0:0:-1,1:1:0,2:1:0,2:0:-1
9|8|1:0:-1
12|4096|1:1:0,2:21:0,3:1:0
4
0 100 0.1
1 1 0.1
2 0 0.000000
3 49
1"""


def _read(text: str | bytes) -> Semantics:
    data = text.encode() if isinstance(text, str) else text
    return read_semantics(io.BytesIO(data), name="s.in")


def _step(text: str) -> Step:
    return load_step(trace_of(_read(text)))


def test_the_published_llama_step() -> None:
    with LLAMA.open("rb") as stream:
        semantics = read_semantics(stream, name="llama")
    assert (len(semantics.ids), len(semantics.kernel_ns)) == (6680, 9757)
    assert f"{int(semantics.nbytes[semantics.is_global].sum()) / GIB:.1f}" == "89.7"
    assert sum(semantics.kernel_ns) == 404_981_620_844
    trace = trace_of(semantics, speed_up=Fraction(20))
    step = load_step(trace)
    assert f"{peak(step) / GIB:.1f}" == "130.8"
    assert step.period_ns == 20_249_081_042
    assert len(step.tensors) == 4798
    assert (trace.info.fingerprint, trace.info.signatures, trace.info.command) == ("", (), ())


def test_only_uses_on_the_device_count() -> None:
    step = _step(TEXT)
    lives = {t.id: (t.nbytes, t.kind, t.alloc_op, t.free_op) for t in step.tensors}
    assert lives == {
        4: (1000, "other", None, None),
        6: (2000, "activation", 1, 2),
        12: (4096, "activation", 1, 3),
    }
    uses = {t.id: [(u.op, u.reads, u.writes) for u in t.uses] for t in step.tensors}
    assert uses[4] == [(0, True, True), (3, True, True)]
    assert uses[6] == [(1, False, True), (2, True, True)]
    assert [op.phase for op in step.ops] == ["forward", "forward", "other", "other"]
    assert [op.duration_ns for op in step.ops] == [100, 1, 0, 49]


def test_the_number_of_cuda_is_that_of_the_first_line() -> None:
    swapped = TEXT.replace("0:CPU,1:CUDA", "0:CUDA,1:CPU").replace(":0:-1", ":0:0")
    assert {tensor.id for tensor in _step(swapped).tensors} == {6, 9}


def test_plain_and_packed_are_the_same() -> None:
    packed = _read(gzip.compress(TEXT.encode()))
    for name in ("ids", "nbytes", "use_op", "use_tensor"):
        assert np.array_equal(getattr(packed, name), getattr(_read(TEXT), name))


def test_no_copy_ever_serves_twice() -> None:
    with LLAMA.open("rb") as stream:
        step = load_step(trace_of(read_semantics(stream, name="llama")))
    places = families(step, idle_intervals(step, 0))
    assert places
    assert all(len(place.members) == 1 and not place.clean for place in places)


def test_times_are_scaled() -> None:
    semantics = _read(TEXT)
    assert load_step(trace_of(semantics, speed_up=Fraction(5, 2))).period_ns == 60
    step = load_step(trace_of(semantics, step_ns=1500))
    assert [op.duration_ns for op in step.ops] == [1000, 10, 0, 490]
    with pytest.raises(UsageError, match="the scaled step would take 0 ns"):
        trace_of(semantics, speed_up=Fraction(1000))
    with pytest.raises(UsageError, match=f"not 1 to {1 << 53}"):
        trace_of(semantics, speed_up=Fraction(1, 10**18))
    for wrong in (Fraction(0), Fraction(-1)):
        with pytest.raises(UsageError, match="cannot be scaled"):
            trace_of(semantics, speed_up=wrong)
    with pytest.raises(UsageError, match="cannot be scaled"):
        trace_of(semantics, step_ns=0)


@given(foreign_steps())
@examples(40)
def test_any_step_is_read_back(foreign: Foreign) -> None:
    step = _step(foreign.semantics())
    assert [op.duration_ns for op in step.ops] == [kernel.units for kernel in foreign.kernels]
    assert {t.id: t.nbytes for t in step.tensors} == {t: n for t, (n, _) in foreign.tensors.items()}
    for tensor in step.tensors:
        ops = foreign.uses(tensor.id)
        is_global = foreign.tensors[tensor.id][1]
        assert [use.op for use in tensor.uses] == ops
        assert all(use.reads and use.writes for use in tensor.uses[1:])
        assert (tensor.alloc_op, tensor.free_op) == (
            (None,) * 2 if is_global else (ops[0], ops[-1])
        )
        assert tensor.uses[0].reads == is_global
        assert tensor.uses[0].writes


BROKEN = {
    "no device types": ("0:CPU,1:CUDA", "CPU", 1, "expected the device types"),
    "no CUDA": ("1:CUDA", "1:CPU", 1, "CUDA among them"),
    "device type twice": ("21:STORAGE", "1:STORAGE", 1, "each number once"),
    "globals are no numbers": ("4,9,", "4,x", 2, "expected the numbers of the global tensors"),
    "negative global": ("4,9,", "4,-9", 2, "expected the numbers of the global tensors"),
    "unknown global": ("4,9,", "4,5", 2, "global tensor 5 is not among the tensors"),
    "global twice": ("4,9,", "4,9,4", 2, "global tensor 4 is there twice"),
    "no number of tensors": ("\n4\n4|", "\nx\n4|", 3, "a whole number as the number of tensors"),
    "no tensors": ("\n4\n4|", "\n0\n4|", 3, "the number of tensors is 0, not from 1"),
    "too many tensors": ("\n4\n4|", "\n99\n4|", 3, "is 99, but only 10 lines follow"),
    "one tensor too many": ("\n4\n4|", "\n5\n4|", 9, "expected a whole number as the number of ke"),
    "one tensor too few": ("\n4\n4|", "\n3\n4|", 7, "a whole number as the number of kernels"),
    "no tensor": ("6|2000|", "6,2000,", 5, "expected `TENSOR|BYTES|KERNEL:TYPE:DEVICE,...`"),
    "tensor twice": ("6|2000|", "4|2000|", 5, "tensor 4 is there twice"),
    "negative size": ("6|2000|", "6|-2000|", 5, "the size in bytes is -2000"),
    "size near 2^63": ("6|2000|", f"6|{2**63 - 1}|", 5, "not from 0 to"),
    "huge size": ("6|2000|", "6|" + "9" * 40 + "|", 5, "expected `TENSOR"),
    "sizes that add up": ("6|2000|", f"6|{2**60}|", 5, "the tensors so far take more than"),
    "use is no number": ("1:1:0,2:1:0", "1:1:0,x:1:0", 5, "expected `TENSOR"),
    "use is cut": ("1:1:0,2:1:0", "1:1:0,2:1", 5, "expected `TENSOR"),
    "unknown kernel": ("1:1:0,2:1:0", "1:1:0,4:1:0", 5, "there is no kernel 4: the last is 3"),
    "uses descend": ("1:1:0,2:1:0", "2:1:0,1:1:0", 5, "kernel 1 after kernel 2: uses must ascend"),
    "use twice": ("1:1:0,2:1:0", "1:1:0,1:1:0", 5, "kernel 1 after kernel 1"),
    "two devices": ("1:1:0,2:1:0", "1:1:0,2:1:1", 5, "CUDA device 1 in a trace of CUDA device 0"),
    "no kernels": ("\n4\n0 100", "\n0\n0 100", 8, "the number of kernels is 0"),
    "too many kernels": ("\n4\n0 100", "\n9\n0 100", 8, "only 5 lines follow: the file is trunc"),
    "one kernel too many": ("\n4\n0 100", "\n5\n0 100", 13, "expected kernel 4 and its time in ns"),
    "one kernel too few": ("\n4\n0 100", "\n3\n0 100", 13, "expected the end of the file"),
    "kernel out of order": ("\n1 1 0.1", "\n2 1 0.1", 10, "expected kernel 1 and its time in ns"),
    "time is no number": ("\n1 1 0.1", "\n1 x 0.1", 10, "expected kernel 1 and its time in ns"),
    "negative time": ("\n1 1 0.1", "\n1 -1 0.1", 10, "the time in ns is -1"),
    "time near 2^63": ("\n1 1 0.1", f"\n1 {2**63 - 1} 0.1", 10, "the time in ns is"),
    "times that add up": ("\n1 1 0.1", f"\n1 {2**53} 0.1", 10, "the kernels so far take more than"),
    "no loss": ("3 49\n1", "3 49", 13, "the file ends where the number of the kernel that makes"),
    "loss is no number": ("3 49\n1", "3 49\nx", 13, "as the kernel that makes the loss"),
    "unknown loss": ("3 49\n1", "3 49\n4", 13, "the kernel that makes the loss is 4, not from -1"),
    "more": ("3 49\n1", "3 49\n1\n2", 14, "expected the end of the file, not `2`"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named_with_its_line(what: str) -> None:
    old, new, line, words = BROKEN[what]
    assert TEXT.count(old) == 1
    with pytest.raises(BadInputError) as caught:
        _read(TEXT.replace(old, new))
    assert str(caught.value).startswith(f"`s.in`, line {line}: ")
    assert words in str(caught.value)


def test_a_file_cut_at_any_line_is_refused() -> None:
    for text in (TEXT, TOY.semantics(loss=2)):
        lines = text.splitlines()
        for kept in range(len(lines)):
            with pytest.raises(BadInputError, match=r"^`s.in`(, line \d+: | is empty)"):
                _read("\n".join(lines[:kept]))


def test_what_is_no_semantics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"\x1f\x8b", gzip.compress(TEXT.encode())[:-9], b"\x1f\x8bx" * 9):
        with pytest.raises(BadInputError, match=r"`s.in` is no whole gzip file"):
            _read(data)
    with pytest.raises(BadInputError, match="line 1: expected text"):
        _read(b"\xff\xfe")
    monkeypatch.setattr(teraio, "LARGEST_FILE", 100)
    with pytest.raises(BadInputError, match="larger than 100 bytes"):
        _read(gzip.compress(TEXT.encode()))


def test_a_step_without_time_or_device_uses_is_refused() -> None:
    idle = TEXT.replace("0 100 ", "0 0 ").replace("1 1 ", "1 0 ").replace("3 49", "3 0")
    with pytest.raises(BadInputError, match="line 12: no kernel takes any time"):
        _read(idle)
    with pytest.raises(BadInputError, match="line 7: no tensor is used on a CUDA device"):
        _read(TEXT.replace(":1:0", ":0:0"))
