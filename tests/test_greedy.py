import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, traces, training_trace

from teraio.planner.copies import families
from teraio.planner.grid import Grid
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.memory import Memory
from teraio.planner.minimum import least_memory
from teraio.planner.options import Options
from teraio.planner.plan import Hardware, HostLink, Offload, Ssd
from teraio.planner.policies.g10 import g10
from teraio.planner.policies.greedy import greedy
from teraio.planner.problem import Problem
from teraio.planner.schedule import Schedule
from teraio.planner.simulate import simulate_actions
from teraio.planner.slack import relax
from teraio.planner.step import idle_intervals, load_step, peak
from teraio.planner.timing import Timeline, retime

MS = 1_000_000
FAST = Hardware(Ssd(10**12, 10**12, 0), HostLink(10**12, 10**12), {})


def problem_of(trace, memory_bytes=None, *, share=0.0, host_bytes=0, channels=ASSUMED):
    step = load_step(trace)
    intervals = tuple(idle_intervals(step, MIB))
    least = least_memory(step, intervals).nbytes
    if memory_bytes is None:
        memory_bytes = least + int(share * (peak(step) - least))
    return Problem(step, intervals, memory_bytes, host_bytes, channels)


def moved(problem):
    return {a.tensor for a in greedy(problem).actions}


def test_families_share_a_copy_between_two_writes():
    step = load_step(
        make_trace(
            24,
            [
                T(1, MIB, "2r 5r 8rw 11r 14r"),
                T(2, MIB, "3r 6r"),
                T(3, MIB, "0w 4r 9r 12w 15r", alloc=0, free=20),
            ],
        )
    )
    intervals = idle_intervals(step, MIB)
    by_after = {
        (step.tensors[i.tensor].id, i.after_op): place
        for i, place in zip(intervals, families(step, intervals), strict=True)
    }
    names = {
        key: ([intervals[m].after_op for m in p.members], p.clean) for key, p in by_after.items()
    }
    # Tensor 1 is written by op 8 alone: the copy made after it serves until op 8 comes again.
    assert names[1, 14] == ([8, 11, 14, 2, 5], False)
    assert names[1, 2] == names[1, 8] == names[1, 14]
    assert names[2, 6] == names[2, 3] == ([3, 6], True)
    assert names[3, 0] == ([0, 4, 9], False)
    assert names[3, 12] == ([12], False)
    assert by_after[3, 4].position == 1


def test_relief_is_clipped_to_the_excess():
    memory = Memory(np.array([0, 2048, 512, 100]), 0, np.array([3, 5, 7, 0]))
    assert memory.relief(0, 3, 1024) == 2 * 5 + 1 * 7
    assert memory.relief(1, 2, 1 << 30) == 4 * 5
    assert memory.relief(3, 4, 512) == 1
    assert memory.relief(3, 6, 512) == 1 + 0 + 1 * 5
    assert memory.worst() == 2048


@given(st.data())
def test_relief_limits_hold(data):
    n_ops = data.draw(st.integers(2, 12))
    values = st.lists(st.integers(-4096, 4096), min_size=n_ops, max_size=n_ops)
    slots = st.lists(st.integers(0, 100), min_size=n_ops, max_size=n_ops)
    memory = Memory(np.array(data.draw(values)), 0, np.array(data.draw(slots)))
    first = data.draw(st.integers(0, n_ops - 1))
    end = data.draw(st.integers(first, first + n_ops - 1))
    size = 512 * data.draw(st.integers(1, 9))
    limit = memory.relief_limits(np.array([first]), np.array([end]), np.array([size]))
    assert memory.relief(first, end, size) <= limit[0]


def test_a_tensor_that_covers_the_excess_is_preferred_to_a_larger_one():
    """A listing that does not clip the benefit would move the larger tensor, for nothing more."""
    trace = make_trace(
        20,
        [
            T(1, 40 * MIB, "0w 19r", alloc=0, free=19),
            T(2, 4 * MIB, "0w 19r", alloc=0, free=19),
            T(3, 4 * MIB, "10w", alloc=10, free=10),
        ],
        durations=10 * MS,
    )
    assert moved(problem_of(trace, 44 * MIB)) == {2}


def test_a_clean_tensor_is_preferred_to_one_that_must_be_written():
    trace = make_trace(
        20,
        [
            T(1, 4 * MIB, "0rw 19r"),
            T(2, 4 * MIB, "0r 19r"),
            T(3, 4 * MIB, "10w", alloc=10, free=10),
        ],
    )
    assert moved(problem_of(trace, 8 * MIB)) == {2}


@pytest.mark.parametrize("size", [1 << 40, 1 << 44, 1 << 55])
def test_tensors_of_many_terabytes_are_weighed_right(size):
    n_ops = 20
    others = [(op + 9) % n_ops for op in range(n_ops)]
    tensors = [
        T(op, size, f"{op}rw {other}r" if op < other else f"{other}r {op}rw")
        for op, other in enumerate(others)
    ]
    trace = make_trace(n_ops, tensors, durations=10**12)
    rates = Hardware(Ssd(10**10, 10**10, 0), HostLink(10**11, 10**11), {})
    problem = problem_of(trace, share=0.125, channels=rates)
    ours = simulate_actions(problem.step, rates, greedy(problem).actions)
    theirs = simulate_actions(problem.step, rates, g10(problem).actions)
    assert ours.step_ns <= theirs.step_ns


def test_nothing_is_moved_that_is_not_needed():
    waiting = [T(k, (3 + k) * MIB, "0w 9r", alloc=0, free=9) for k in range(5)]
    trace = make_trace(10, [*waiting, T(9, 4 * MIB, "5w", alloc=5, free=5)])
    over = peak(load_step(trace)) - 4 * MIB
    for budget, count in ((over, 1), (over + 1, 1), (over + 4 * MIB, 0)):
        assert len(moved(problem_of(trace, budget, channels=FAST))) == count


def test_host_memory_is_used_only_where_the_ssd_has_no_time():
    trace = training_trace(6)
    memory = peak(load_step(trace)) // 2
    fast = problem_of(trace, memory, host_bytes=1 << 40, channels=FAST)
    assert {a.to for a in greedy(fast).actions if isinstance(a, Offload)} == {"ssd"}
    slow = with_rates(FAST, ssd_read=10**8, ssd_write=10**8)
    both = problem_of(trace, memory, host_bytes=1 << 40, channels=slow)
    assert "host" in {a.to for a in greedy(both).actions if isinstance(a, Offload)}


def coarse(problem, ops_in_a_bin):
    n_ops = len(problem.step.ops)
    return Grid(np.append(np.arange(0, n_ops, ops_in_a_bin), n_ops))


def placed(problem, ops_in_a_bin=1):
    schedule = Schedule(problem, coarse(problem, ops_in_a_bin))
    options = Options(schedule)
    for index in range(len(problem.intervals)):
        option = options.in_time(index) or options.forced(index)
        if option is not None:
            schedule.place(index, option.tier, option.gone, option.back)
    return schedule


@examples(40)
@given(
    traces(),
    hardware(),
    st.sampled_from([0, 0.1, 0.5]),
    st.sampled_from([0, 8 * MIB, 64 * MIB]),
    st.integers(1, 5),
)
def test_the_books_balance(trace, channels, share, host_bytes, ops_in_a_bin):
    """After any run of the policy, memory and channels are what the placements make them."""
    problem = problem_of(trace, share=share, host_bytes=host_bytes, channels=channels)
    schedule = placed(problem, ops_in_a_bin)
    grid = schedule.grid
    over = problem.step.demand - problem.planned_bytes
    n_ops, n_bins = grid.n_ops, grid.n_bins
    expected = grid.most(over)
    for index, placement in schedule.placed.items():
        interval = problem.intervals[index]
        gone, back = grid.first_op(placement.gone), grid.first_op(placement.back + 1) - 1
        assert interval.after_op < gone <= back < interval.needed_by_op
        assert placement.write == schedule.needs_write(index, placement.tier)
        for position in range(placement.gone, placement.back + 1):
            expected[position % n_bins] -= schedule.size(index)
        for position in range(gone, back + 1):
            over[position % n_ops] -= schedule.size(index)
    assert schedule.memory.over.tolist() == expected.tolist() * 2
    assert grid.most(over).tolist() == expected.tolist()
    for index in sorted(schedule.placed, reverse=True):
        schedule.remove(index)
    assert schedule.ssd_written_bytes == 0
    clean = Schedule(problem, grid)
    assert schedule.memory.over.tolist() == clean.memory.over.tolist()
    for tier in schedule.tiers:
        for ours, fresh in (
            (schedule.channels.to_gpu(tier), clean.channels.to_gpu(tier)),
            (schedule.channels.to_tier(tier), clean.channels.to_tier(tier)),
        ):
            assert ours.free_ns(0, 2 * n_bins) == fresh.free_ns(0, 2 * n_bins)
    ours, fresh = Options(schedule), Options(clean)
    assert all(ours.in_time(i) == fresh.in_time(i) for i in range(len(problem.intervals)))


@examples(40)
@given(
    traces(),
    hardware(),
    st.sampled_from([0, 0.1, 0.5]),
    st.sampled_from([0, 8 * MIB, 64 * MIB]),
    st.integers(1, 5),
    st.data(),
)
def test_no_option_is_better_than_its_limit(trace, channels, share, host_bytes, bins, data):
    problem = problem_of(trace, share=share, host_bytes=host_bytes, channels=channels)
    schedule = Schedule(problem, coarse(problem, bins))
    options = Options(schedule)
    count = len(problem.intervals)
    for index in data.draw(st.lists(st.integers(0, max(0, count - 1)), max_size=4)):
        option = options.in_time(index) if index < count else None
        if option is not None:
            schedule.place(index, option.tier, option.gone, option.back)
    in_time, forced = options.in_time_limits(), options.forced_limits()
    for index in range(count):
        option, pressed = options.in_time(index), options.forced(index)
        assert option is None or option.ratio <= in_time[index] * (1 + 1e-9)
        assert pressed is None or pressed.ratio <= forced[index] * (1 + 1e-9)


@examples(40)
@given(traces(), st.integers(1, 7), st.integers(-100, 200))
def test_bins_and_ops_agree(trace, ops_in_a_bin, op):
    problem = problem_of(trace, share=0.5)
    grid = coarse(problem, ops_in_a_bin)
    assert grid.first_op(grid.holding(op)) <= op < grid.first_op(grid.holding(op) + 1)
    assert grid.first_op(grid.inside(op) - 1) < op <= grid.first_op(grid.inside(op))
    firsts, ends = grid.windows(problem)
    for interval, first, end in zip(problem.intervals, firsts, ends, strict=True):
        assert first == grid.inside(interval.after_op + 1)
        assert end == grid.holding(interval.needed_by_op)


def test_a_long_step_in_little_memory_has_fine_bins_where_it_needs_them():
    n_ops = 10_000
    tensors = [
        T(1, 8 * MIB, f"0rw 5000r 5002r {n_ops - 1}r"),
        T(2, 8 * MIB, "5001rw", alloc=5001, free=5001),
    ]
    problem = problem_of(make_trace(n_ops, tensors), 8 * MIB)
    grid = Grid.of(problem)
    assert 4096 <= grid.n_bins < 4110
    assert {5001, 5002} <= set(grid.edges.tolist())
    assert moved(problem) == {1}


def windows(schedule):
    return {index: (p.gone, p.back) for index, p in schedule.placed.items()}


@examples(40)
@given(traces(), hardware(), st.sampled_from([0, 0.2, 0.6]))
def test_slack_keeps_the_budget_and_narrows_no_window(trace, channels, share):
    schedule = placed(problem_of(trace, share=share, channels=channels))
    over, before = schedule.memory.worst(), windows(schedule)
    relax(schedule)
    assert schedule.memory.worst() <= max(0, over)
    for index, (gone, back) in windows(schedule).items():
        assert before[index][0] <= gone <= back <= before[index][1]


@examples(40)
@given(traces(), hardware(), st.sampled_from([0, 0.2, 0.6]))
def test_windows_set_anew_keep_the_budget(trace, channels, share):
    problem = problem_of(trace, share=share, channels=channels)
    schedule = placed(problem)
    fits = schedule.memory.worst() <= 0
    retime(schedule, Timeline.of(problem.step))
    assert not fits or schedule.memory.worst() <= 0
    for index, (gone, back) in windows(schedule).items():
        interval = problem.intervals[index]
        assert interval.after_op < gone <= back < interval.needed_by_op


def test_windows_set_anew_need_no_stall_where_memory_allows_them():
    trace = training_trace(8, op_ns=5 * MS)
    problem = problem_of(trace, peak(load_step(trace)))
    schedule = Schedule(problem)
    for index in range(0, len(problem.intervals), 3):
        interval = problem.intervals[index]
        if interval.needed_by_op - interval.after_op > 4:
            schedule.place(index, "ssd", interval.after_op + 1, interval.needed_by_op - 1)
    tight = simulate_actions(problem.step, ASSUMED, schedule.actions())
    retime(schedule, Timeline.of(problem.step))
    loose = simulate_actions(problem.step, ASSUMED, schedule.actions())
    assert tight.stall_ns > 0
    assert loose.stall_ns == 0


def test_a_timeline_finds_ops_by_time():
    step = load_step(make_trace(3, [T(1, 1, "0r")], durations=[10, 20, 30], gaps=[1, 0, 5]))
    ideal = Timeline.of(step)
    assert ideal.starts.tolist() == [1, 11, 36]
    assert [ideal.first_start(ns) for ns in (0, 1, 2, 11, 36, 37, 67, 68)] == [
        0, 0, 1, 1, 2, 3, 3, 4,
    ]  # fmt: skip
    assert [ideal.last_end(ns) for ns in (-1, 0, 10, 11, 31, 66, 76, 77)] == [
        -2, -1, -1, 0, 1, 2, 2, 3,
    ]  # fmt: skip
    late = Timeline.of(step, [(1, 100)])
    assert late.starts.tolist() == [1, 111, 136]
    assert late.period_ns == 166
    assert late.start(4) == 166 + 111
