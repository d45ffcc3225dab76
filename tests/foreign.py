"""Small steps written in the formats of other tools, and a strategy for random ones.

Imports no torch.
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from teraio.profiler.importers.g10_files import find_g10

if TYPE_CHECKING:
    from pathlib import Path

    from teraio.profiler.importers.g10_files import G10Files

RULE = "_" * 60
CONFIG = """\
output_folder           ../results/toy
# comment

GPU_memory_size_GB      40
GPU_frequency_GHz       1.2
GPU_PCIe_bandwidth_GBps 15.754
CPU_PCIe_bandwidth_GBps 15.754
CPU_memory_line_GB      128
SSD_PCIe_bandwidth_GBps 3.2
SSD_read_latency_us     12
SSD_write_latency_us    16
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel; `inputs` and `outputs` are numbers of tensors, `units` its cycles or ns."""

    name: str
    units: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def tensors(self) -> list[int]:
        return list(dict.fromkeys((*self.inputs, *self.outputs)))


@dataclass(frozen=True)
class Foreign:
    """A step of another tool; `tensors` has each tensor's bytes and whether it is global."""

    kernels: tuple[Kernel, ...]
    tensors: dict[int, tuple[int, bool]]

    def uses(self, tensor: int) -> list[int]:
        return [op for op, kernel in enumerate(self.kernels) if tensor in kernel.tensors]

    def g10(self) -> dict[str, str]:
        """Return the texts of G10's statistics by their file names."""
        kernels, lives = [], []
        for op, kernel in enumerate(self.kernels):
            kernels += [
                f"Kernel ID: {op}, Name: {kernel.name}",
                f"Parent OP ID:{op + 100}; Name: Toy",
                f"Execution Time: {kernel.units}",
                "Input Tensors:",
                *map(self._tensor, kernel.inputs),
                "Output Tensors:",
                *map(self._tensor, kernel.outputs),
                RULE,
            ]
        for tensor in self.tensors:
            lives += [self._tensor(tensor), self._life(tensor), RULE, self._tensor(tensor)]
            lives += [
                "Hidding Intervals:",
                "interval 0: 1--------3",
                "Estimated Time:6.5e+06",
                RULE,
            ]
        return {
            "tensors.config": "\n".join([*map(self._tensor, self.tensors), ""]),
            "kernels.config": "\n".join([*kernels, ""]),
            "interval.config": "\n".join([*lives, ""]),
        }

    def _tensor(self, tensor: int) -> str:
        nbytes, is_global = self.tensors[tensor]
        return (
            f"tensor{tensor} Is weight (global)?: {int(is_global)}, Size in byte: {nbytes}, "
            f"Range:0--{nbytes}"
        )

    def _life(self, tensor: int) -> str:
        uses = self.uses(tensor)
        if self.tensors[tensor][1]:
            return "Global!"
        read = any(tensor in self.kernels[op].inputs for op in uses)
        death = uses[-1] + 1 if read or len(uses) > 1 else -1
        return f"Liveness: Birth: {uses[0]}, Death: {death}."

    def semantics(self, *, loss: int = -1) -> str:
        """Return the text of a `semantics.in`."""
        tensors = [
            f"{tensor}|{nbytes}|" + ",".join(f"{op}:1:0" for op in self.uses(tensor))
            for tensor, (nbytes, _) in self.tensors.items()
        ]
        kernels = [f"{op} {kernel.units} 0.25" for op, kernel in enumerate(self.kernels)]
        lines = [
            "0:CPU,1:CUDA,21:STORAGE",
            ",".join(str(t) for t, (_, is_global) in self.tensors.items() if is_global),
            str(len(tensors)), *tensors, str(len(kernels)), *kernels, str(loss),
        ]  # fmt: skip
        return "\n".join(lines)


TOY = Foreign(
    kernels=(
        Kernel("GatherV2_Forward", 1200, (1, 2), (3,)),
        Kernel("ReLU_Forward", 600, (3,), (3, 7)),
        Kernel("makeLoss", 1, (3,), (4,)),
        Kernel("ReLU_Backward", 1201, (4, 2), (5,)),
        Kernel("Add_MultiGredient", 12, (5, 4), (5,)),
        Kernel("Linear_Apply_Grad_Weight", 1199, (5, 1), (1,)),
        Kernel("Apply_Grad", 7, (), ()),
    ),
    tensors={
        1: (8192, True),
        2: (4096, False),
        3: (1 << 20, False),
        4: (512, False),
        5: (1000, False),
        7: (2048, False),
    },
)
"""Tensor 2 is never written, 7 never read; 1 is global."""


def write_run(folder: Path, texts: dict[str, str], *, config: str | None = CONFIG) -> Path:
    """Write a G10 run to `folder`, with its configuration beside it; return the folder."""
    (folder / "statistics").mkdir(parents=True)
    for name, text in texts.items():
        (folder / "statistics" / name).write_text(text)
    if config is not None:
        (folder.parent / f"{folder.name}.config").write_text(config)
    return folder


def archive(texts: dict[str, str | bytes], mode: str = "w:gz") -> io.BytesIO:
    """Return an archive of files with these paths."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as tar:  # type: ignore[call-overload]
        for name, text in texts.items():
            data = text.encode() if isinstance(text, str) else text
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    sink.seek(0)
    return sink


def run_files(texts: dict[str, str], *, config: str | None = CONFIG) -> G10Files:
    """Return the files of a G10 run that has these statistics."""
    members: dict[str, str | bytes] = {f"toy/statistics/{n}": text for n, text in texts.items()}
    if config is not None:
        members["toy.config"] = config
    return find_g10(archive(members), name="toy.tar.gz")


@st.composite
def foreign_steps(draw: st.DrawFn) -> Foreign:
    """Any small step in which every tensor is used."""
    n_ops = draw(st.integers(1, 7))
    names = st.sampled_from(["Add_Forward", "Add_Backward", "Apply_Grad", "LoadData_A0"])
    tensors: dict[int, tuple[int, bool]] = {}
    inputs: list[list[int]] = [[] for _ in range(n_ops)]
    outputs: list[list[int]] = [[] for _ in range(n_ops)]
    for tensor in draw(st.lists(st.integers(0, 99), min_size=1, max_size=6, unique=True)):
        tensors[tensor] = (draw(st.integers(0, 1 << 40)), draw(st.booleans()))
        uses = draw(st.sets(st.integers(0, n_ops - 1), min_size=1))
        for op in sorted(uses):
            how = draw(st.sampled_from(["r", "w", "rw"]))
            if "r" in how:
                inputs[op].append(tensor)
            if "w" in how:
                outputs[op].append(tensor)
    units = draw(st.lists(st.integers(0, 10**10), min_size=n_ops, max_size=n_ops))
    units[-1] += 1
    kernels = (
        Kernel(draw(names), unit, tuple(i), tuple(o))
        for unit, i, o in zip(units, inputs, outputs, strict=True)
    )
    return Foreign(tuple(kernels), tensors)
