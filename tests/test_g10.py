"""G10's statistics as a trace: what is taken over, and what is refused with file and line."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from example_counts import examples
from foreign import CONFIG, TOY, Foreign, foreign_steps, run_files
from hypothesis import given

from teraio.planner.step import load_step, peak
from teraio.profiler.errors import BadInputError
from teraio.profiler.importers.g10 import read_g10
from teraio.profiler.importers.g10_files import find_g10

if TYPE_CHECKING:
    from teraio.planner.step import Step

BERT = Path(__file__).parent / "data" / "g10-bert-256.tar.gz"
GIB = 1 << 30


def _step(foreign: Foreign, config: str | None = CONFIG) -> Step:
    return load_step(read_g10(run_files(foreign.g10(), config=config)))


def test_published_peak_and_ideal_of_bert() -> None:
    trace = read_g10(find_g10(BERT))
    step = load_step(trace)
    assert (len(step.ops), len(step.tensors)) == (1369, 1463)
    assert f"{peak(step) / GIB:.3f}" == "47.760"
    assert abs(Fraction(step.period_ns) - Fraction(8_742_558_777, 6) * 5) <= Fraction(1, 2)
    assert trace.info.device_memory_bytes == 40 * GIB
    outliving = [tensor for tensor in step.tensors if tensor.persistent]
    assert len(outliving) == 156
    assert sum(tensor.nbytes for tensor in outliving) == 17_823_494_144
    assert {op.phase for op in step.ops} == {"forward", "backward", "optimizer", "other"}


def test_ops_are_kernels_with_their_phase_and_parent() -> None:
    step = _step(TOY)
    assert [op.name for op in step.ops] == [kernel.name for kernel in TOY.kernels]
    assert [op.phase for op in step.ops] == [
        "forward", "forward", "other", "backward", "backward", "optimizer", "optimizer",
    ]  # fmt: skip
    assert step.ops[3].module == "Toy.103"
    assert step.period_ns == 3517  # 4220 cycles at 1.2 GHz take 3516.67 ns
    assert [op.start_ns for op in step.ops] == [0, 1000, 1500, 1501, 2502, 2512, 3511]


def test_uses_kinds_and_lives() -> None:
    step = _step(TOY)
    tensors = {tensor.id: tensor for tensor in step.tensors}
    uses = {i: [(u.op, u.reads, u.writes) for u in t.uses] for i, t in tensors.items()}
    assert uses[1] == [(0, True, False), (5, True, True)]
    assert uses[2] == [(0, True, False), (3, True, False)]
    assert uses[3] == [(0, False, True), (1, True, True), (2, True, False)]
    lives = {i: (t.kind, t.alloc_op, t.free_op) for i, t in tensors.items()}
    assert lives[1] == ("other", None, None)
    assert lives[3] == ("activation", 0, 2)
    assert lives[7] == ("activation", 1, 1)  # `Death: -1`
    assert tensors[2].slot == 1


def test_the_frequency_is_that_of_the_configuration() -> None:
    assert _step(TOY, "GPU_frequency_GHz 2.4").period_ns == 1758
    assert _step(TOY, None).period_ns == 3517


@given(foreign_steps())
@examples(30)
def test_any_step_is_read_back(foreign: Foreign) -> None:
    trace = read_g10(run_files(foreign.g10()))
    step = load_step(trace)
    assert not trace.info.fingerprint
    assert not trace.info.signatures
    assert [op.name for op in step.ops] == [kernel.name for kernel in foreign.kernels]
    done = Fraction(0)
    for op, kernel in zip(step.ops, foreign.kernels, strict=True):
        assert abs(op.start_ns - done) <= Fraction(1, 2)
        done += Fraction(kernel.units) * 5 / 6
        assert abs(op.end_ns - done) <= Fraction(1, 2)
    assert {t.id: t.nbytes for t in step.tensors} == {t: n for t, (n, _) in foreign.tensors.items()}
    for tensor in step.tensors:
        ops = foreign.uses(tensor.id)
        is_global = foreign.tensors[tensor.id][1]
        assert (tensor.alloc_op, tensor.free_op) == (
            (None,) * 2 if is_global else (ops[0], ops[-1])
        )
        for use, op in zip(tensor.uses, ops, strict=True):
            kernel = foreign.kernels[op]
            own = (op, tensor.id in kernel.inputs, tensor.id in kernel.outputs)
            assert tuple(use) == own
        assert foreign.kernels[ops[0]].tensors[tensor.slot] == tensor.id


TENSOR_3 = "tensor3 Is weight (global)?: 0, Size in byte: 1048576, Range:0--1048576"
BROKEN = {
    "no tensor": ("tensors", "tensor2 Is weight", "tensor2 is weight", 2, "expected `tensor0 Is"),
    "tensor twice": ("tensors", "tensor2 Is", "tensor1 Is", 2, "tensor 1 is there twice"),
    "negative size": ("tensors", "byte: 4096", "byte: -1", 2, "-1, not from 0"),
    "size near 2^63": ("tensors", "byte: 4096", f"byte: {2**63 - 1}", 2, f"{2**63 - 1}, not from"),
    "huge size": ("tensors", "byte: 4096", "byte: 1" + "0" * 40, 2, "expected a whole number"),
    "sizes that add up": ("tensors", "byte: 512,", f"byte: {2**60},", 4,
                          "the tensors so far take more than"),
    "size is no number": ("tensors", "byte: 4096", "byte: big", 2, "expected `tensor0"),
    "kernel out of order": ("kernels", "ID: 1,", "ID: 2,", 10, "expected `Kernel ID: 1"),
    "kernel twice": ("kernels", "ID: 1,", "ID: 0,", 10, "expected `Kernel ID: 1"),
    "no time": ("kernels", "Execution Time: 600", "", 12, "expected `Execution Time"),
    "time is no number": ("kernels", "Time: 600", "Time: x", 12, "expected `Execution Time"),
    "negative time": ("kernels", "Time: 600", "Time: -6", 12, "time in cycles is -6"),
    "time near 2^63": ("kernels", "Time: 600", f"Time: {2**63}", 12, "not from 0 to"),
    "times that add up": ("kernels", "Time: 600", f"Time: {2**53 * 6 // 5}", 12,
                          "the kernels so far take more than"),
    "no inputs": ("kernels", "600\nInput", "600\nIn", 13, "expected `Input Tensors:`"),
    "no outputs": ("kernels", "600\nInput", "600\nOutput", 13, "expected `Input Tensors:`"),
    "unknown tensor": ("kernels", f":\n{TENSOR_3}\nOut", f":\n{TENSOR_3.replace('3', '9', 1)}\nOut",
                       14, "tensor 9 is not in `tensors.config`"),
    "other size": ("kernels", f":\n{TENSOR_3}\nOut", f":\n{TENSOR_3[:-1]}7\nOut",
                   14, "tensor 3 is otherwise in `tensors.config`"),
    "use twice": ("kernels", f":\n{TENSOR_3}\nOut", f":\n{TENSOR_3}\n{TENSOR_3}\nOut",
                  15, "tensor 3 is there twice"),
    "truncated kernel": ("kernels", "Name: Apply_Grad\n", "Name: Apply_Grad\x00", 55,
                         "the file ends where `Execution Time: CYCLES` should be"),
    "birth after death": ("interval", "Birth: 0, Death: 4", "Birth: 4, Death: 4", 10,
                          "the death, 4, is not after the birth, 4"),
    "death too late": ("interval", "Birth: 0, Death: 4", "Birth: 0, Death: 8", 10,
                       "the death is 8, not from -1 to 7"),
    "birth too late": ("interval", "Birth: 0, Death: 4", "Birth: 7, Death: -1", 10,
                       "the birth is 7, not from 0 to 6"),
    "no life": ("interval", "Birth: 0, Death: 4", "Birth: 0", 10, "expected `Liveness: Birth"),
    "global by one file": ("interval", "Liveness: Birth: 0, Death: 4.", "Global!", 10,
                           "expected `Liveness"),
    "no global": ("interval", "Global!", "Liveness: Birth: 0, Death: 4.", 2, "expected `Global!`"),
    "life twice": ("interval", "Birth: 0, Death: 4.", "Birth: 0, Death: 4.\nGlobal!", 11,
                   "expected a tensor that has no life yet"),
    "anything else": ("interval", "Estimated Time:6.5e+06\n", "Estimated\n", 7, "its intervals"),
    "uses past the life": ("interval", "Birth: 0, Death: 4", "Birth: 0, Death: 3", None,
                           "line 32: kernel 3 uses tensor 2, which is alive in kernels 0 to 2 only "
                           "by `toy.tar.gz:toy/statistics/interval.config`, line 10"),
    "use before birth": ("interval", "Birth: 0, Death: 4", "Birth: 1, Death: 4", None,
                         "line 6: kernel 0 uses tensor 2"),
    "used again after -1": ("interval", "Birth: 0, Death: 4", "Birth: 0, Death: -1", None,
                            "alive in kernels 0 to 0 only"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named_with_file_and_line(what: str) -> None:
    name, old, new, line, words = BROKEN[what]
    texts = TOY.g10()
    file = f"{name}.config"
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new, 1).partition("\x00")[0]
    with pytest.raises(BadInputError) as caught:
        read_g10(run_files(texts))
    said = str(caught.value)
    assert words in said
    if line is not None:
        assert said.startswith(f"`toy.tar.gz:toy/statistics/{file}`, line {line}: ")


@pytest.mark.parametrize("file", ["tensors.config", "kernels.config", "interval.config"])
def test_a_file_cut_at_any_line_is_refused(file: str) -> None:
    lines = TOY.g10()[file].splitlines()
    for kept in range(len(lines)):
        texts = TOY.g10() | {file: "\n".join(lines[:kept])}
        if file == "interval.config" and kept > len(lines) - 7:
            continue  # all lives are there
        if file == "kernels.config" and kept and not lines[kept - 1].strip("_"):
            continue  # a step of fewer kernels
        with pytest.raises(BadInputError, match=r"\.config`(, line \d+: | is empty)"):
            read_g10(run_files(texts))


def test_kernels_cut_between_two_do_not_fit_the_lives() -> None:
    texts = TOY.g10()
    ends = [m.end() for m in re.finditer(r"_{60}\n", texts["kernels.config"])]
    for end in ends[:5]:
        cut = texts | {"kernels.config": texts["kernels.config"][:end]}
        with pytest.raises(BadInputError, match=r"interval.config`, line \d+: the (birth|death)"):
            read_g10(run_files(cut))


def test_a_step_without_time_or_tensors_is_refused() -> None:
    texts = TOY.g10()
    idle = re.sub(r"Time: \d+", "Time: 0", texts["kernels.config"])
    with pytest.raises(BadInputError, match=r"kernels.config`, line 59: no kernel takes any time"):
        read_g10(run_files(texts | {"kernels.config": idle}))
    bare = re.sub(r"tensor.*\n", "", texts["kernels.config"])
    with pytest.raises(BadInputError, match="no kernel uses a tensor"):
        read_g10(run_files(texts | {"kernels.config": bare}))


def test_line_ends_and_forms_of_other_versions_are_read() -> None:
    texts = {name: text.replace("\n", "\r\n") for name, text in TOY.g10().items()}
    assert load_step(read_g10(run_files(texts))) == _step(TOY)
    older = TOY.g10()
    older["kernels.config"] = re.sub(
        r"(?m)^Parent OP ID:(\d+); Name: Toy\n(.*)$",
        r"Parent Layer ID:\1; Name:Toy\n\2\n(256,3,224,224)",
        older["kernels.config"],
    )
    assert load_step(read_g10(run_files(older))) == _step(TOY)
    bare = TOY.g10()
    bare["kernels.config"] = re.sub(r"Parent.*\n", "", "-" * 60 + "\n" + bare["kernels.config"])
    assert {op.module for op in load_step(read_g10(run_files(bare))).ops} == {""}
