"""How much work something is, counted and not timed: a machine that is busy with other things counts the same."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, those written in C and the turns of generators among them."""
    count = 0

    def one_more(*_: object) -> None:
        nonlocal count
        count += 1

    before, collects = sys.getprofile(), gc.isenabled()
    # A collection that falls into it calls what others want to be told of it.
    gc.disable()
    sys.setprofile(one_more)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count


def grows_with_its_size(work: Callable[[int], object], size: int) -> bool:
    """Whether twice as much is twice the work: 2 for a line, 4 for a square, between two steps so that what is always
    there does not count."""
    work(size)  # What is made once, as tables and caches, is made now.
    one, two, four = (calls(partial(work, times * size)) for times in (1, 2, 4))
    return four - two < 2.5 * (two - one)
