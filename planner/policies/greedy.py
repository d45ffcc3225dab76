"""The greedy policy: the interval that relieves most for its transfer time comes first.

After Algorithm 1 of TERAIO (arXiv 2506.06472), with the benefit as its text has it: only what
is really over the budget counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from teraio.planner.problem import Answer
from teraio.planner.search import Search

if TYPE_CHECKING:
    from teraio.planner.problem import Problem


def greedy(problem: Problem) -> Answer:
    """Choose intervals until the step fits the budget; it does for every budget that can be met.

    First those that fit the free channel time; if memory is still over, those that do once
    their copies are made in intervals before; then those that make the device wait least. What
    turned out not to be needed is undone. The windows of what is left are set in a few ways,
    and those with the shortest stall are kept.

    A plan that stalls is improved on, as often as the size of the step allows: channels also
    have the time in which the best plan so far waits; the interval that it waits for longest is
    exchanged for others; and what was chosen for less memory is tried.
    """
    search = Search(problem)
    search.begin()
    search.stretch()
    search.exchange()
    search.tighten()
    return Answer(search.best.actions)
