from example_counts import examples
from hypothesis import given
from traces import MIB, T, make_trace, traces

from teraio.planner.minimum import least_memory
from teraio.planner.step import idle_intervals, load_step


def test_what_must_stay_and_where():
    step = load_step(
        make_trace(
            6,
            [
                T(1, 4 * MIB, "0r 5r", name="away"),
                T(2, 3 * MIB, "2w 3r", alloc=2, free=3),
                T(3, 2 * MIB, "0r 4r"),
                T(4, 1 * MIB),
                T(5, 512, "0r"),
            ],
            workspace={2: 2 * MIB},
            pinned=(3,),
        )
    )
    least = least_memory(step, idle_intervals(step, MIB))
    assert least.op == 2
    assert least.workspace_bytes == 2 * MIB
    assert [t.id for t in least.tensors] == [2, 3, 4, 5]
    assert least.nbytes == 8 * MIB + 512


def test_without_intervals_the_least_is_the_peak():
    step = load_step(make_trace(3, [T(1, MIB, "0r"), T(2, MIB, "1w 2r", alloc=1)]))
    assert least_memory(step, []).nbytes == 2 * MIB


def test_host_memory_that_is_full_counts_for_those_that_have_no_other_tier():
    step = load_step(
        make_trace(
            6,
            [
                T(1, 4 * MIB, "0r 5r"),
                T(2, 3 * MIB, "0r 4r"),
                T(3, 2 * MIB, "0r 5r"),
                T(4, 10 * MIB, "2w", 2, 2),
            ],
        )
    )
    intervals = idle_intervals(step, MIB)
    assert least_memory(step, intervals).nbytes == 10 * MIB
    for host_bytes, lack in [(9 * MIB, 0), (7 * MIB, 0), (5 * MIB, 2 * MIB), (0, 7 * MIB)]:
        least = least_memory(step, intervals, {0, 1}, host_bytes)
        assert (least.nbytes, least.host_lack_bytes, least.op) == (10 * MIB + lack, lack, 2)
        assert [t.id for t in least.tensors] == [4]


@examples(40)
@given(traces())
def test_the_least_is_what_its_tensors_add_up_to(trace):
    step = load_step(trace)
    intervals = idle_intervals(step, MIB)
    least = least_memory(step, intervals)
    assert least.nbytes == least.workspace_bytes + sum(t.size for t in least.tensors)
    assert least.nbytes == max(_resident(step, intervals, k) for k in range(len(step.ops)))


def _resident(step, intervals, op):
    n_ops = len(step.ops)
    total = step.ops[op].workspace_bytes
    for index, tensor in enumerate(step.tensors):
        death = n_ops - 1 if tensor.free_op is None else tensor.free_op
        alive = (tensor.alloc_op or 0) <= op <= death
        away = any(
            i.tensor == index and (i.after_op < op < i.needed_by_op or op + n_ops < i.needed_by_op)
            for i in intervals
        )
        total += tensor.size if alive and not away else 0
    return total
