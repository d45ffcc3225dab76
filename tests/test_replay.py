"""A plan decides speed, never results: whatever it says and whatever the program does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_counts import examples
from faulty_store import FaultyStore
from home import Done, Home, bits, with_memory
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import teraio.executor.stores.opening
from teraio.executor.stores.base import Piece
from teraio.executor.stores.posix import PosixStore
from teraio.planner.plan import Action, Offload, Plan, PlannedTensor, Prefetch
from teraio.profiler.errors import StorageError

TRAIN = """
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 128),
                      nn.Tanh(), nn.Linear(128, 64))
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for step in range(6):
    x = torch.randn({batch}, 64)
    loss = (model(x) - x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    {extra}
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
kept["losses"] = losses
kept["model"] = {{k: v.clone() for k, v in model.state_dict().items()}}
kept["optimizer"] = optimizer.state_dict()
"""


def train(batch: object = 32, extra: str = "pass") -> str:
    return TRAIN.format(batch=batch, extra=extra)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def plan(home: Home) -> Plan:
    return home.plan(home.trace(train()), 0.6)


@functools.cache
def _plain(folder: Path, text: str) -> Any:
    return bits(Home(folder).plainly(text))


def require_same(home: Home, done: Done, text: str) -> None:
    assert done.exit_code == 0
    assert bits(done.kept) == _plain(home.folder, text)
    assert list(home.ssd.iterdir()) == []


def test_the_plan_is_carried_out(home: Home, plan: Plan) -> None:
    done = home.run(plan, train())
    require_same(home, done, train())
    report = done.report
    assert (report["steps"], len(report["step_ns"]), len(report["peak_by_step"])) == (6, 6, 6)
    assert report["divergences"] == done.told == []
    assert report["executed_actions"] == report["planned_actions"] > 0
    assert report["offloaded_bytes"]["ssd"] > 0
    assert report["prefetched_bytes"]["ssd"] > 0
    assert report["peak_bytes"] == max(report["peak_by_step"]) <= report["budget_bytes"]
    assert report["over_budget_ops"] == 0


def test_steady_steps_move_what_the_plan_says(home: Home, plan: Plan) -> None:
    done = home.run(with_memory(plan, 1 << 40), train())
    sizes = {t.id: t.nbytes for t in plan.tensors}
    planned = sum(sizes[a.tensor] for a in plan.actions if isinstance(a, Offload))
    moved = [done.report[key].get("ssd", 0) for key in ("offloaded_bytes", "dropped_bytes")]
    assert done.report["unplanned_evictions"] == 0
    assert planned <= sum(moved) <= 5 * planned


def test_two_tiers(home: Home) -> None:
    to_host = ("^optimizer_state:",)
    made = home.plan(home.trace(train()), 0.6, host_bytes=200_000, never_ssd=to_host)
    assert {a.to for a in made.actions if isinstance(a, Offload)} == {"ssd", "host"}
    done = home.run(made, train())
    require_same(home, done, train())
    assert done.report["offloaded_bytes"].keys() == {"ssd", "host"}
    assert done.report["io_path"]["host"] == "host-memory"
    assert done.report["divergences"] == []


def test_several_folders(home: Home, plan: Plan) -> None:
    more = home.folder / "more"
    more.mkdir()
    done = home.run(plan, train(), folders=[home.ssd, more])
    require_same(home, done, train())
    assert list(more.iterdir()) == []


@pytest.mark.parametrize("memory_bytes", [1, 100_000, 1 << 40])
def test_any_budget_gives_the_same_results(home: Home, plan: Plan, memory_bytes: int) -> None:
    done = home.run(with_memory(plan, memory_bytes), train())
    require_same(home, done, train())
    assert (done.report["over_budget_ops"] > 0) == (memory_bytes < plan.budget.memory_bytes)


def test_a_plan_without_actions_only_watches(home: Home, plan: Plan) -> None:
    done = home.run(with_memory(replace(plan, actions=(), tensors=()), 1 << 40), train())
    require_same(home, done, train())
    assert done.report["offloaded_bytes"] == {}
    assert done.report["divergences"] == []


# Any plan


@st.composite
def nonsense(draw: st.DrawFn, ops: int, tensors: list[PlannedTensor]) -> tuple[Action, ...]:
    """Actions in op order, and nothing else about them makes sense."""
    actions: list[Action] = []
    for after_op in sorted(draw(st.lists(st.integers(0, ops - 1), max_size=40))):
        tensor = draw(st.sampled_from(tensors)).id
        other = draw(st.integers(0, ops - 1))
        if draw(st.booleans()):
            actions.append(Prefetch(tensor, "ssd", after_op, other))
        else:
            actions.append(Offload(tensor, "ssd", after_op, other, draw(st.booleans())))
    return tuple(actions)


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), tight=st.booleans(), shifted=st.booleans())
def test_any_plan_at_all_gives_the_same_results(
    home: Home, plan: Plan, data: st.DataObject, tight: bool, shifted: bool
) -> None:
    tensors = list(plan.tensors)
    if shifted:  # tensors are looked for at ops and slots where something else is
        tensors = [replace(t, first_op=max(t.first_op - 1, 0), slot=t.slot // 2) for t in tensors]
    actions = data.draw(nonsense(plan.trace.ops, tensors))
    other = replace(plan, tensors=tuple(tensors), actions=actions)
    done = home.run(other if tight else with_memory(other, 1 << 40), train())
    require_same(home, done, train())
    assert done.report["divergences"] == []


# Any program


def test_another_batch_is_named_once_and_followed_again(home: Home, plan: Plan) -> None:
    text = train(batch="48 if step == 3 else 32")
    done = home.run(plan, text)
    require_same(home, done, text)
    assert done.told == done.report["divergences"]
    [message] = done.told
    assert message.startswith("step 3: op ")
    assert message.endswith(
        "is `aten.randn.default`; the plan has `aten.randn.default` with other shapes or dtypes"
    )


def test_an_op_with_another_shape_of_as_many_bytes_is_found_out(home: Home) -> None:
    """The storage under an expanded tensor does not say how large what is made of it will be."""
    usual = train(extra="(torch.ones(1).expand(8, 96) / 2).sum()")
    text = train(extra="(torch.ones(1).expand(8 + 8 * (step == 4), 96) / 2).sum()")
    done = home.run(home.plan(home.trace(usual), 0.6), text)
    require_same(home, done, text)
    [message] = done.told
    assert message.startswith("step 4: op ")
    assert "is `aten.div.Tensor`; the plan has `aten.div.Tensor` with other shapes" in message


def test_an_op_more_in_some_steps(home: Home, plan: Plan) -> None:
    text = train(extra="(step % 2 and kept.update(norm=model[0].weight.norm().item()))")
    done = home.run(plan, text)
    require_same(home, done, text)
    assert [message.split(":")[0] for message in done.told] == ["step 1", "step 3", "step 5"]
    assert "is `aten.linalg_vector_norm.default`; the plan has" in done.told[0]


def test_ops_after_the_end_of_the_planned_step(home: Home, plan: Plan) -> None:
    ended = home.trace(train(extra="pass"))
    assert plan.trace.ops == len(ended.info.signatures)
    text = train().replace(
        "    losses.append", "    [model[0].bias.sum() for _ in range(3)]\n    losses.append"
    )
    done = home.run(plan, text)
    require_same(home, done, text)
    assert done.told


def test_a_step_that_ends_early(home: Home, plan: Plan) -> None:
    text = train(extra="(step == 4 and setattr(model[5].bias, 'grad', None))")
    done = home.run(plan, text)
    require_same(home, done, text)
    [message] = done.told
    assert message.startswith("step 4: the step ended after op ")
    assert message.endswith(f"; the plan has {plan.trace.ops} ops")


def test_a_step_more_than_usual(home: Home, plan: Plan) -> None:
    text = train().replace("    optimizer.step()", "    optimizer.step(); optimizer.step()", 1)
    done = home.run(plan, text)
    require_same(home, done, text)
    assert done.report["steps"] == 12
    assert len(done.told) >= 5


def test_a_gradient_that_is_missing(home: Home, plan: Plan) -> None:
    text = train(extra="(step == 4 and setattr(model[5].weight, 'grad', None))")
    done = home.run(plan, text)
    require_same(home, done, text)
    assert len(done.told) >= 1


@pytest.mark.parametrize(
    "extra",
    [
        "kept[step] = loss.tolist()",
        "kept[step] = model[0].weight.tolist()",
        "kept[step] = str(model[3].weight)",
        "kept[step] = model[0].weight.detach().numpy().sum().item()",
        "kept[step] = [p.data_ptr() > 0 for p in model.parameters()]",
        "import copy; kept[step] = copy.deepcopy(model.state_dict())",
        "import pickle; kept[step] = pickle.loads(pickle.dumps(model[0].weight))",
        "import io; torch.save(optimizer, b := io.BytesIO()); kept[step] = len(b.getvalue())",
        "import gc; gc.collect()",
        "model[0].weight.data = model[0].weight.data.clone()",
        "torch.manual_seed(step)",
    ],
)
def test_what_a_program_may_do_between(home: Home, plan: Plan, extra: str) -> None:
    text = train(extra=extra)
    require_same(home, home.run(plan, text), text)


def test_threads_and_forks_in_mid_run(home: Home, plan: Plan) -> None:
    extra = (
        "import os, threading; out = []; "
        "t = threading.Thread(target=lambda: out.append((model[0].weight * 2).sum().item())); "
        "t.start(); t.join(); kept[step] = out; pid = os.fork(); "
        "pid or os._exit(int(model[0].weight.sum().isfinite()) + 10); "
        "kept[-step] = os.waitpid(pid, 0)[1]"
    )
    text = train(extra=extra)
    done = home.run(plan, text)
    require_same(home, done, text)
    assert {done.kept[-step] for step in range(1, 6)} == {11 << 8}


# When something goes wrong


def test_after_the_run_everything_is_there(home: Home, plan: Plan) -> None:
    text = train().replace(
        'kept["model"]', "kept['parameters'] = list(model.parameters())\nkept[\"model\"]"
    )
    done = home.run(plan, text)
    plain = home.plainly(text)
    assert bits(done.kept["parameters"]) == bits(plain["parameters"])


def test_a_script_that_raises_leaves_its_tensors_in_place(home: Home, plan: Plan) -> None:
    text = train(extra="kept['p'] = list(model.parameters()); 1 / (3 - step)")
    done = home.run(plan, text)
    assert done.exit_code == 1
    assert done.report["steps"] == 3
    assert list(home.ssd.iterdir()) == []
    assert all(p.isfinite().all() for p in done.kept["p"])


class Faults:
    """Stores that fail at the n-th read or write."""

    def __init__(self) -> None:
        self.reads = self.writes = -1

    def store(self, *arguments: Any, **options: Any) -> Any:
        faults = self

        class Store(FaultyStore):
            def write_piece(self, *arguments: Any) -> int:
                faults.writes -= 1
                if faults.writes == 0:
                    msg = "cannot write: ENOSPC (No space left on device)"
                    raise StorageError(msg, hint="free some space")
                return self.inner.write_piece(*arguments)

            def read_piece(self, *arguments: Any) -> int:
                faults.reads -= 1
                if faults.reads == 0:
                    msg = "cannot read: EIO (Input/output error)"
                    raise StorageError(msg)
                return self.inner.read_piece(*arguments)

        return Store(PosixStore(*arguments, **options), _no_fault)


def _no_fault(piece: Piece) -> None:
    """Nothing is wrong with this piece."""


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    faults = Faults()
    monkeypatch.setattr(teraio.executor.stores.opening, "PosixStore", faults.store)
    yield faults


@pytest.mark.parametrize("nth", [1, 2, 7])
def test_a_failed_write_stops_the_run(home: Home, plan: Plan, faults: Faults, nth: int) -> None:
    faults.writes = nth
    with pytest.raises(StorageError, match="ENOSPC") as caught:
        home.run(plan, train())
    assert "tensor " in str(caught.value)
    assert ", step " in str(caught.value)
    assert caught.value.hint == "free some space"
    assert list(home.ssd.iterdir()) == []


@pytest.mark.parametrize("nth", [1, 5])
def test_a_failed_read_stops_the_run(home: Home, plan: Plan, faults: Faults, nth: int) -> None:
    faults.reads = nth
    with pytest.raises(StorageError, match=r"EIO .*; tensor \d+.*, step \d+, op \d+"):
        home.run(plan, train(), restore=False)
    assert list(home.ssd.iterdir()) == []


def test_a_script_that_swallows_an_error_goes_on(home: Home, plan: Plan, faults: Faults) -> None:
    text = train().replace("for step in range(6):", "def one(step):")
    loop = """
for step in range(6):
    try:
        one(step)
    except Exception as error:
        kept.setdefault("errors", []).append(type(error).__name__)
"""
    faults.reads = 3
    done = home.run(plan, text.replace('kept["losses"]', loop + 'kept["losses"]'), restore=False)
    assert done.exit_code == 0
    assert done.kept["errors"][0] == "StorageError"


def test_a_folder_too_small_for_the_plan(
    home: Home, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("teraio.executor.stores.posix._DataFile.drive_bytes", lambda _: 4096)
    with pytest.raises(StorageError, match=r"cannot reserve \d+ bytes in .*4096 bytes free"):
        home.run(plan, train())
    assert list(home.ssd.iterdir()) == []


def test_where_no_view_can_be_made_of_what_is_away(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a view is an access there: it is planned for, and a steady step fetches no more."""
    for module in ("profiler.session", "executor.memory"):
        monkeypatch.setattr(f"teraio.{module}.can_swap", lambda _: False)
    trace = home.trace(train())
    views = [r for r in trace.table.to_pylist() if r["op_name"] == "aten.t.default"]
    assert views
    assert {(row["access"], row["nbytes"] > 0) for row in views} == {("read", True)}
    made = home.plan(trace, 0.6)
    short, long = (
        home.run(made, train().replace("range(6)", f"range({steps})")).report for steps in (4, 7)
    )
    assert short["memory"] == long["memory"] == "resize, unguarded"
    assert long["unplanned_fetches"] == short["unplanned_fetches"]
    assert long["unplanned_evictions"] == short["unplanned_evictions"]
    require_same(home, home.run(made, train()), train())
