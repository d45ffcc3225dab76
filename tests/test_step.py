import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given
from traces import MIB, T, make_trace, traces, training_trace

from teraio.planner.step import Interval, Use, idle_intervals, load_step, peak
from teraio.profiler.errors import BadInputError
from teraio.profiler.trace import Trace


def test_the_last_step_as_plain_data():
    trace = make_trace(
        4,
        [
            T(7, 1000, "0r 3rw", kind="parameter", name="w"),
            T(9, 512, "1w 2r", alloc=1, free=2),
            T(11, 5),
        ],
        durations=[10, 20, 30, 40],
        gaps=[1, 0, 5, 0],
        workspace={2: 4096},
        steps=3,
        pinned=(9,),
    )
    step = load_step(trace)
    assert [op.start_ns for op in step.ops] == [1, 11, 36, 66]
    assert step.ops[2].workspace_bytes == 4096
    assert step.ops[3].module == "layers.3"
    assert step.period_ns == 106
    assert step.slots.tolist() == [10, 25, 30, 41]
    weight, inner, unused = step.tensors
    assert (weight.id, weight.nbytes, weight.size) == (7, 1000, 1024)
    assert weight.uses == (Use(0, True, False), Use(3, True, True))
    assert weight.persistent
    assert not inner.persistent
    assert inner.pinned
    assert unused.uses == ()
    assert (unused.first_op, unused.slot) == (-1, -1)


def test_slot_counts_the_storages_of_the_op_that_it_really_uses():
    trace = make_trace(2, [T(5, 1), T(3, 1, "0r"), T(1, 1, "0r 1r"), T(2, 1, "1w")])
    slots = {t.id: (t.first_op, t.slot) for t in load_step(trace).tensors}
    assert slots == {5: (-1, -1), 3: (0, 0), 1: (0, 1), 2: (1, 1)}


def test_a_tied_weight_is_one_tensor_with_all_its_uses_merged():
    tied = T(1, 256_000, "0r 0r 4r 4w", kind="parameter")
    (tensor,) = load_step(make_trace(5, [tied])).tensors
    assert tensor.uses == (Use(0, True, False), Use(4, True, True))
    assert peak(load_step(make_trace(5, [tied]))) == 256_000


def test_demand_of_every_kind_of_life():
    step = load_step(
        make_trace(
            4,
            [
                T(1, 512, "0r"),
                T(2, 1024, "1w 2r", alloc=1, free=2),
                T(3, 2048, "0r", free=0),
                T(4, 4096, "3w", alloc=3),
            ],
            workspace={3: 100},
        )
    )
    assert step.demand.tolist() == [512 + 2048, 512 + 1024, 512 + 1024, 512 + 4096 + 512]
    assert peak(step) == 5120


def test_intervals_wrap_only_for_persistent_tensors_and_need_an_op_inside():
    step = load_step(
        make_trace(
            10,
            [
                T(1, MIB, "1r 2r 5rw"),
                T(2, MIB, "0w 3r", alloc=0),
                T(3, MIB, "6r"),
                T(4, MIB - 512, "0r 9r"),
                T(5, MIB),
                T(6, MIB, "2r 7r", free=8),
            ],
        )
    )
    by_id = [(step.tensors[i].id, a, n) for i, a, n in idle_intervals(step, MIB)]
    assert by_id == [(1, 2, 5), (1, 5, 11), (2, 0, 3), (3, 6, 16), (6, 2, 7)]
    assert idle_intervals(step, 1)[-2:] == [Interval(3, 0, 9), Interval(5, 2, 7)]


def test_pinned_tensors_have_no_interval():
    step = load_step(make_trace(10, [T(1, MIB, "0r 5r")], pinned=(1,)))
    assert idle_intervals(step, 1) == []


def test_overlapping_ops_are_put_one_after_the_other():
    trace = make_trace(2, [T(1, 1, "0r 1r")], durations=[100, 10])
    column = pa.array([0, 50], pa.int64())
    index = trace.table.schema.get_field_index("start_ns")
    table = trace.table.set_column(index, trace.table.schema.field(index), column)
    assert [op.start_ns for op in load_step(Trace(table, trace.info)).ops] == [0, 100]


@pytest.mark.parametrize(
    "tensor",
    [T(1, -5, "0r"), T(1, 5, "0r 3r", free=2), T(1, 5, "0r", alloc=1), T(1, 5, "0r", free=9)],
)
def test_tensors_used_outside_their_life_are_refused(tensor):
    with pytest.raises(BadInputError, match="tensor 1"):
        load_step(make_trace(4, [tensor]))


def test_an_access_of_no_known_kind_is_refused():
    trace = make_trace(3, [T(1, 10, "0w 2r", alloc=0, free=2)])
    index = trace.table.column_names.index("access")
    words = ["owns", None, "read"]
    column = pa.array(words).dictionary_encode()
    table = trace.table.set_column(index, trace.table.schema.field(index), [column])
    with pytest.raises(BadInputError, match="none of read, write, readwrite, none"):
        load_step(Trace(table, trace.info))


def test_a_last_step_without_a_storage_is_refused():
    trace = make_trace(2, [T(1, 10, "0w 1r", alloc=0, free=1)], steps=2)
    index = trace.table.column_names.index("tensor")
    column = pa.array([1, 1, None, None], type=pa.int64())
    table = trace.table.set_column(index, trace.table.schema.field(index), column)
    with pytest.raises(BadInputError, match="uses no storage"):
        load_step(Trace(table, trace.info))


def test_ops_with_a_hole_are_refused():
    trace = make_trace(3, [T(1, 512, "0r 2r")])
    table = pa.concat_tables([trace.table.slice(0, 1), trace.table.slice(2)])
    with pytest.raises(BadInputError, match="numbered"):
        load_step(Trace(table, trace.info))


def test_chunked_tables_with_other_dictionaries_load_alike():
    trace = training_trace(5)
    pieces = [trace.table.slice(i, 3) for i in range(0, trace.table.num_rows, 3)]
    rebuilt = [pa.Table.from_pylist(p.to_pylist(), schema=p.schema) for p in pieces]
    assert load_step(Trace(pa.concat_tables(rebuilt), trace.info)) == load_step(trace)


@examples(40)
@given(traces())
def test_demand_equals_a_count_by_hand(trace):
    step = load_step(trace)
    last = len(step.ops) - 1
    by_hand = [
        step.ops[k].workspace_bytes
        + sum(
            t.size
            for t in step.tensors
            if (t.alloc_op or 0) <= k <= (last if t.free_op is None else t.free_op)
        )
        for k in range(len(step.ops))
    ]
    assert np.array_equal(step.demand, by_hand)
