"""`--verify`: changed bytes and changed gradients are found, and nothing else is."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from away import everything_away
from faulty_store import FaultyStore
from home import Home, results

import teraio.executor.stores.opening
from teraio.executor.device import open_device
from teraio.executor.memory import address_of
from teraio.executor.reference import main, record_digests, reference_digests
from teraio.executor.stores.opening import StoreOptions, open_stores, room_for
from teraio.executor.stores.posix import PosixStore
from teraio.executor.verify import Digests, gradient_digest
from teraio.planner.plan import Offload, Plan
from teraio.profiler.errors import StorageError, VerificationError
from teraio.profiler.script import Script
from teraio.profiler.touch import Hold

TRAIN = """
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.Linear(128, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
kept["weight"] = model[0].weight.detach().clone()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def plan(home: Home) -> Plan:
    return home.plan(home.trace(TRAIN), 0.6)


@pytest.fixture(scope="module")
def expected(home: Home) -> list[str]:
    with results():
        digests, exit_code = record_digests(home.script(TRAIN), 3)
    assert (len(digests), exit_code) == (3, 0)
    return digests


# Digests


def optimizer_of(*gradients: torch.Tensor | None) -> torch.optim.Optimizer:
    params = []
    for gradient in gradients:
        shape = (1,) if gradient is None else gradient.shape
        params.append(torch.nn.Parameter(torch.zeros(shape)))
        params[-1].grad = gradient
    return torch.optim.SGD(params, lr=0.1)


BASE = (torch.arange(6.0), torch.ones(2))


def test_equal_gradients_have_equal_digests() -> None:
    one = gradient_digest(optimizer_of(*BASE), None)
    other = gradient_digest(optimizer_of(*(g.clone() for g in BASE)), None)
    assert one == other
    assert len(one) == 64


@pytest.mark.parametrize(
    "gradients",
    [
        (torch.arange(6.0) * 1.0000001, torch.ones(2)),
        (torch.ones(2), torch.arange(6.0)),
        (torch.arange(6.0).view(2, 3), torch.ones(2)),
        (torch.arange(6.0), None),
        (torch.arange(6.0),),
        (None, torch.arange(6.0), torch.ones(2), torch.ones(2)),
        (torch.arange(6.0), -torch.ones(2)),
        (),
    ],
)
def test_any_difference_is_another_digest(gradients: tuple[torch.Tensor | None, ...]) -> None:
    optimizer = optimizer_of(*gradients) if gradients else optimizer_of(None)
    assert gradient_digest(optimizer, None) != gradient_digest(optimizer_of(*BASE), None)


def test_a_digest_sees_bits_not_numbers() -> None:
    plus, minus = optimizer_of(torch.tensor([0.0])), optimizer_of(torch.tensor([-0.0]))
    assert gradient_digest(plus, None) != gradient_digest(minus, None)
    nan = torch.tensor([float("nan")])
    assert gradient_digest(optimizer_of(nan), None) == gradient_digest(optimizer_of(nan), None)


def test_absent_gradients_are_fetched_and_no_op_is_added() -> None:
    gradient = torch.arange(600.0)
    plain = gradient_digest(optimizer_of(gradient), None)
    with everything_away() as away:
        optimizer = optimizer_of(gradient * 1)
        torch.zeros(1) + 1
        stream: Any = torch.utils._python_dispatch._get_current_dispatch_mode()
        ops = len(away.names)
        assert gradient_digest(optimizer, stream) == plain
        assert len(away.names) == ops
        assert away.touched == [Hold.NOT]


def test_digests_are_compared_one_step_after_the_other() -> None:
    stream: Any = None
    digests = Digests([gradient_digest(optimizer_of(*BASE), None)] * 2)
    assert (digests.wanted, digests.compared) == (True, 0)
    digests.compare(optimizer_of(*BASE), stream)
    with pytest.raises(VerificationError, match="gradients of optimizer step 1 differ") as caught:
        digests.compare(optimizer_of(torch.ones(3)), stream)
    assert caught.value.exit_code == 77
    assert "deterministic" in caught.value.hint
    digests.compare(optimizer_of(*BASE), stream)
    assert (digests.wanted, digests.compared) == (False, 2)
    assert not Digests([]).wanted


# A run against a run without offload


def test_the_same_gradients_pass(home: Home, plan: Plan, expected: list[str]) -> None:
    done = home.run(plan, TRAIN, checksums=True, expected=expected)
    assert done.report["verified_steps"] == 3
    assert done.report["offloaded_bytes"]["ssd"] > 0


class Bitflips:
    """Stores that change one bit of what is written, from a given write on."""

    def __init__(self) -> None:
        self.countdown = 0

    def store(self, *arguments: Any, **options: Any) -> Any:
        flips = self

        class Store(FaultyStore):
            def read_piece(self, extent: Any, piece: Any, address: int) -> int:
                moved = self.inner.read_piece(extent, piece, address)
                flips.countdown -= 1
                if flips.countdown == 0:
                    raw = (ctypes.c_ubyte * piece.nbytes).from_address(address + piece.start)
                    raw[piece.nbytes // 2] ^= 0x40
                return moved

        return Store(PosixStore(*arguments, **options), lambda _: None)


@pytest.fixture
def flips(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bitflips]:
    flips = Bitflips()
    monkeypatch.setattr(teraio.executor.stores.opening, "PosixStore", flips.store)
    yield flips


def test_wrong_bytes_show_in_the_gradients(
    home: Home, plan: Plan, expected: list[str], flips: Bitflips
) -> None:
    flips.countdown = 1
    with pytest.raises(VerificationError, match="differ from those of the run without offload"):
        home.run(plan, TRAIN, expected=expected)
    assert list(home.ssd.iterdir()) == []


def test_without_verification_nobody_looks(home: Home, plan: Plan, flips: Bitflips) -> None:
    flips.countdown = 1
    assert home.run(plan, TRAIN).exit_code == 0


def test_a_corrupted_byte_on_the_drive_is_caught(
    home: Home, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PosixStore.write_piece
    corrupted: list[int] = []

    def corrupting(self: PosixStore, extent: Any, piece: Any, address: int) -> int:
        moved = real(self, extent, piece, address)
        if not corrupted:
            corrupted.append(piece.offset)
            block = torch.full((4096,), 7, dtype=torch.uint8).untyped_storage()
            self._files[piece.volume].write(piece.offset, address_of(block), 4096)
        return moved

    monkeypatch.setattr(PosixStore, "write_piece", corrupting)
    with pytest.raises(StorageError, match=r"read back with CRC-32 .*, was written with") as caught:
        home.run(plan, TRAIN, checksums=True, restore=False)
    assert "tensor " in str(caught.value)


# The run without offload


def test_the_reference_run_is_another_process(home: Home, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, sys\nprint('loud')\np = torch.nn.Parameter(torch.ones(3))\n"
        "optimizer = torch.optim.SGD([p], lr=0.1)\n"
        "for step in range(int(sys.argv[1])):\n"
        "    p.grad = torch.full((3,), float(step))\n    optimizer.step()\n"
    )
    digests = reference_digests(Script(str(script), ("4",)), 9)
    assert len(digests) == 4, "the script ended earlier"
    assert digests[2] == gradient_digest(optimizer_of(torch.full((3,), 2.0)), None)
    with pytest.raises(VerificationError, match="exit code 1: ValueError: invalid literal"):
        reference_digests(Script(str(script), ("four",)), 2)


def test_it_stops_once_it_has_what_it_wants(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\np = torch.nn.Parameter(torch.ones(3))\n"
        "optimizer = torch.optim.SGD([p], lr=0.1)\nsteps = 0\n"
        "while True:\n    p.grad = torch.ones(3)\n    optimizer.step()\n"
    )
    out = tmp_path / "digests.json"
    assert main([str(out), "2", "script", str(script)]) == 0
    assert out.read_text().count('"') == 4


def test_a_script_without_steps_has_no_digests(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    assert record_digests(Script(str(script)), 1) == ([], 0)
    assert not hasattr(torch.optim.SGD.step, "_teraio_unwatched")


@pytest.mark.parametrize("checksums", [True, False])
def test_verification_covers_host_memory_too(
    plan: Plan, tmp_path: Path, *, checksums: bool
) -> None:
    to_host = [replace(a, to="host") if isinstance(a, Offload) else a for a in plan.actions]
    budget = replace(plan.budget, host_bytes=1 << 20)
    with_host = replace(plan, budget=budget, actions=tuple(to_host))
    content, back = (
        ctypes.create_string_buffer(b"some bytes", 512),
        ctypes.create_string_buffer(512),
    )
    with ExitStack() as stack:
        options = StoreOptions([tmp_path], checksums=checksums)
        store = open_stores(room_for(with_host), options, open_device(), stack)["host"]
        extent = store.allocate(512)
        (piece,) = store.pieces(extent)
        store.write_piece(extent, piece, ctypes.addressof(content))
        store._slabs[piece.volume][piece.offset] ^= 1
        if checksums:
            with pytest.raises(StorageError, match="host memory slab 0"):
                store.read_piece(extent, piece, ctypes.addressof(back))
        else:
            assert store.read_piece(extent, piece, ctypes.addressof(back)) == 512
