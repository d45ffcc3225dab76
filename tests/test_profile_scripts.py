"""Scripts of many kinds under the recorder: what their traces hold, and that they run as ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from home import Home, bits

from teraio.planner.step import load_step, peak
from teraio.profiler.trace import Trace

LOOP = """
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range({steps}):
    {before}
    loss = model(torch.randn(8, 32)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    {after}
kept["losses"] = losses
"""


def loop(steps: int = 6, before: str = "pass", after: str = "pass") -> str:
    return LOOP.format(steps=steps, before=before, after=after)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def rows(trace: Trace | None, step: int | None = None) -> list[dict[str, Any]]:
    assert trace is not None
    wanted = trace.last_step if step is None else step
    found: list[dict[str, Any]] = [r for r in trace.table.to_pylist() if r["step"] == wanted]
    return found


def names(trace: Trace | None) -> list[str]:
    return [name for _, name in sorted({(r["op"], r["op_name"]) for r in rows(trace)})]


# Which steps are kept


@pytest.mark.parametrize(
    ("steps", "warmup", "ran", "kept", "steady"),
    [(2, 2, 6, 2, True), (1, 0, 6, 1, True), (3, 1, 6, 3, True), (2, 2, 4, 2, True),
     (2, 2, 3, 2, True), (2, 2, 1, 1, False), (5, 3, 2, 2, False)],
)  # fmt: skip
def test_so_many_steps_after_so_many_others(
    home: Home, steps: int, warmup: int, ran: int, kept: int, steady: bool
) -> None:
    made, _ = home.profile(loop(ran), steps=steps, warmup=warmup, go_on=False)
    assert made.trace is not None
    assert made.exit_code == 0
    assert made.trace.info.steps == kept
    assert {r["step"] for r in made.trace.table.to_pylist()} == set(range(kept))
    assert made.steady == steady


def test_the_script_is_stopped_or_goes_on(home: Home) -> None:
    stopped, kept = home.profile(loop(9), go_on=False)
    assert kept == {}
    went_on, kept_then = home.profile(loop(9), go_on=True)
    assert bits(kept_then) == bits(home.plainly(loop(9)))
    assert stopped.trace is not None
    assert went_on.trace is not None
    assert stopped.trace.info.fingerprint == went_on.trace.info.fingerprint
    assert (stopped.stopped_after, went_on.stopped_after) == (4, 0)


def test_a_step_that_is_not_complete_is_left_out(home: Home) -> None:
    made, _ = home.profile(loop(3, after="step == 2 and model(torch.ones(1, 32))"))
    complete, _ = home.profile(loop(3))
    assert names(made.trace) == names(complete.trace)


def test_no_step_no_trace(home: Home) -> None:
    made, kept = home.profile("kept['sum'] = (torch.ones(3) * 2).sum().item()")
    assert (made.trace, made.exit_code, kept) == (None, 0, {"sum": 6.0})


def test_a_script_that_raises_keeps_what_is_complete(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _ = home.profile(loop(6, before="1 / (3 - step)"))
    assert made.exit_code == 1
    assert made.trace is not None
    assert made.trace.info.steps == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_workspace_is_measured_however_few_steps_there_are(home: Home, warmup: int) -> None:
    made, _ = home.profile(loop(), steps=1, warmup=warmup)
    assert any(r["workspace_bytes"] for r in rows(made.trace))


# What a program is


def test_the_same_program_has_the_same_fingerprint(home: Home) -> None:
    one, other = home.trace(loop()), home.trace(loop())
    assert one.info.fingerprint == other.info.fingerprint
    assert one.info.signatures == other.info.signatures
    assert len(one.info.signatures) == len(names(one))


@pytest.mark.parametrize(
    "text",
    [
        loop().replace("randn(8, 32)", "randn(9, 32)"),
        loop().replace("nn.GELU()", "nn.ReLU()"),
        loop().replace("randn(8, 32)", "randn(8, 32, dtype=torch.float64).float()"),
        loop(after="torch.zeros(3)"),
    ],
)
def test_another_program_has_another(home: Home, text: str) -> None:
    assert home.trace(text).info.fingerprint != home.trace(loop()).info.fingerprint


@pytest.mark.parametrize(
    "extra",
    ["torch.full((4,), 1.0 * step)", "torch.tensor(1.0 * step)", "torch.randint(step + 1, (4,))",
     "loss_scale = torch.ones(4) * step", "torch.manual_seed(step)"],
)  # fmt: skip
def test_values_are_no_part_of_it(home: Home, extra: str) -> None:
    text = loop(before=extra)
    one, _ = home.profile(text, warmup=1)
    other, _ = home.profile(text, warmup=3)
    assert one.trace is not None
    assert other.trace is not None
    assert one.trace.info.fingerprint == other.trace.info.fingerprint


# What is alive


def test_what_is_alive_and_not_used_is_there_too(home: Home) -> None:
    trace = home.trace("unused = torch.ones(5000) * 2\n" + loop())
    [row] = [r for r in rows(trace) if r["nbytes"] == 20_000]
    assert (row["op"], row["access"], row["alloc_op"], row["free_op"]) == (0, "none", None, None)


def test_what_is_only_viewed_is_there_too(home: Home) -> None:
    text = "import numpy\ndata = torch.from_numpy(numpy.zeros((50, 100)))\n"
    trace = home.trace(text + loop(before="part = data[step]"))
    [row] = [r for r in rows(trace) if r["nbytes"] == 40_000]
    assert row["access"] == "none"
    assert row["tensor"] in trace.info.pinned, "its memory is numpy's"


@pytest.mark.parametrize(
    ("code", "pinned"),
    [
        ("big.numpy()", True),
        ("big.share_memory_()", True),
        ("torch.from_dlpack(big)", True),
        ("big.tolist()", False),
        ("big.data_ptr()", False),
        ("repr(big)", False),
    ],
)
@pytest.mark.filterwarnings("ignore:The argument 'device'")
def test_what_shares_its_memory_is_pinned(home: Home, code: str, pinned: bool) -> None:
    trace = home.trace(f"big = torch.ones(5000) * 1\n{code}\n" + loop(before="big + 1"))
    found = {r["tensor"] for r in rows(trace) if r["nbytes"] == 20_000 and r["access"] == "read"}
    assert len(found) == 1
    assert (found <= trace.info.pinned) == pinned


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    "code",
    ["out = torch.empty(0); torch.add(big, 1, out=out)",
     "out = torch.empty(1); torch.add(big, 1, out=out)",
     "out = torch.empty(1); out.resize_(5000).fill_(1)",
     "out = torch.empty(1); out.untyped_storage().resize_(20_000); out.fill_(1)"],
)  # fmt: skip
def test_a_storage_that_grows_counts_with_its_full_size(home: Home, code: str) -> None:
    trace = home.trace("big = torch.ones(5000) * 1\n" + loop(before=code))
    sizes = [
        r["nbytes"] for r in rows(trace) if r["access"] == "readwrite" and r["phase"] == "other"
    ]
    assert 20_000 in sizes


def test_lives_end_where_the_last_reference_does(home: Home) -> None:
    text = loop(before="a = torch.ones(5000); b = a * 2; del a; c = b * 2; del b, c")
    found = {r["tensor"]: r for r in rows(home.trace(text)) if r["nbytes"] == 20_000}
    lives = sorted((r["alloc_op"], r["free_op"]) for r in found.values())
    first = lives[0][0]
    assert lives == [(first, first + 1), (first + 1, first + 2), (first + 2, first + 2)]


def test_the_peak_is_that_of_what_is_alive(home: Home) -> None:
    step = load_step(home.trace(loop(before="a = torch.ones(100_000); b = a * 2; del a, b")))
    assert 800_000 < peak(step) < 900_000


def test_accumulated_gradients_are_written_again(home: Home) -> None:
    text = loop().replace(
        "    loss.backward()\n",
        "    loss.backward()\n    for _ in range(3):\n"
        "        model(torch.randn(8, 32)).square().mean().backward()\n",
    )
    trace = home.trace(text)
    weight = [
        (r["phase"], r["access"]) for r in rows(trace) if r["name"] == "2.weight.grad"
        and r["access"] != "none"
    ]  # fmt: skip
    assert weight.count(("backward", "readwrite")) == 3
    assert names(trace).count("aten.gelu.default") == 4


# Other programs


def test_two_models_in_turn(home: Home) -> None:
    text = """
one, two = nn.Linear(8, 8), nn.Linear(8, 4)
first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.Adam(two.parameters())
for step in range(6):
    for model, optimizer in ((one, first), (two, second)):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    trace = home.trace(text)
    assert names(trace).count("aten.addmm.default") == 2
    found = {r["name"] for r in rows(trace) if r["kind"] == "parameter"}
    assert found == {"weight", "bias"}


def test_parameters_without_a_module_have_names(home: Home) -> None:
    text = """
p = torch.ones(4, requires_grad=True)
optimizer = torch.optim.Adam([p])
for step in range(6):
    (p * 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    found = {(r["kind"], r["name"]) for r in rows(home.trace(text)) if r["name"]}
    assert {("parameter", "param0"), ("gradient", "param0.grad")} <= found
    assert ("optimizer_state", "param0.exp_avg") in found


def test_a_script_that_profiles_itself(home: Home) -> None:
    text = loop().replace("for step", "profile = torch.profiler.profile()\nfor step") + (
        "\nkept['events'] = 0\n"
    )
    text = text.replace("    optimizer.step()", "    profile.start() if step == 0 else None\n"
                        "    optimizer.step()") + "profile.stop()\n"  # fmt: skip
    text += "kept['events'] = sum(e.name == 'aten::addmm' for e in profile.events())\n"
    seen, usual = home.profile(text)[1]["events"], home.plainly(text)["events"]
    assert seen in (usual, 2 * usual), "a mode calls each operator once more"
    assert usual > 0


def test_a_script_in_function_transforms_and_inference(home: Home) -> None:
    text = loop(
        before="kept[step] = torch.func.grad(lambda v: (v * v).sum())(torch.ones(3)).tolist()\n"
        "    kept[-step] = torch.vmap(torch.sum)(torch.ones(2, 3)).tolist()\n"
        "    with torch.inference_mode(): kept['i'] = model(torch.ones(1, 32)).sum().item()"
    )
    assert bits(home.profile(text)[1]) == bits(home.plainly(text))


def test_nothing_of_the_recorder_stays(home: Home) -> None:
    import threading

    import torch

    before = torch.optim.Optimizer.profile_hook_step, threading.Thread.start, torch.compile
    home.profile(loop(), go_on=False)
    assert (
        torch.optim.Optimizer.profile_hook_step, threading.Thread.start, torch.compile
    ) == before  # fmt: skip
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not torch._C._autograd._profiler_enabled()
    assert not torch.nn.modules.module._global_forward_hooks
