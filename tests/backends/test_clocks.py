"""Virtual time: whatever depends on what, pools take turns, and the same comes out every time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlgraph.backends.clocks import ThreadClock
from rlgraph.backends.device_queues import DeviceQueues, DeviceSet
from rlgraph.backends.lock_places import TOGETHER, LockPlaces, may_always_share
from rlgraph.backends.virtual_clock import VirtualClock
from rlgraph.ir.plan import Plan, Pool
from tests.waits import NEVER


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert not set(threading.enumerate()) - before  # others' threads may end meanwhile


@dataclass(frozen=True)
class Task:
    seconds: int
    after: tuple[int, ...]
    pools: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    start: float
    end: float
    cause: object


def run(tasks: list[Task]) -> dict[int, Done]:
    """Each task begins when those before it are done, as the executor does it; in the order in which they end."""
    clock = VirtualClock()
    queues = DeviceQueues(Plan("p", tuple(Pool(name, 1) for name in "abc"), (), (), ()), clock)
    done: dict[int, Done] = {}
    begun: set[int] = set()

    def work(number: int, tell: Callable[[Callable[[], None]], None]) -> None:
        with queues.acquire_devices(*(DeviceSet(pool, frozenset({0})) for pool in tasks[number].pools)):
            start, cause = clock.now, clock.wait_cause
            clock.sleep(tasks[number].seconds)
            found = Done(start, clock.now, cause)
            clock.note_wait_cause(found)
        tell(partial(done.__setitem__, number, found))

    with clock.task_pool(len(tasks)) as pool:
        while len(done) < len(tasks):
            for number, task in enumerate(tasks):
                if number not in begun and all(other in done for other in task.after):
                    begun.add(number)
                    pool.submit(partial(work, number, pool.post_event))
            pool.next_event()()
    return done


@st.composite
def graphs(draw: st.DrawFn, pools: str = "abc") -> list[Task]:
    count = draw(st.integers(1, 12))
    return [
        Task(
            draw(st.integers(0, 5)),
            tuple(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else (),
            tuple(sorted(draw(st.sets(st.sampled_from(pools), min_size=1, max_size=2)))),
        )
        for number in range(count)
    ]


def longest(tasks: list[Task]) -> float:
    ends: list[float] = []
    for task in tasks:
        ends.append(task.seconds + max((ends[other] for other in task.after), default=0))
    return max(ends)


@given(graphs())
@settings(max_examples=150)
def test_a_graph_of_tasks(tasks: list[Task]) -> None:
    done = run(tasks)
    assert sorted(done) == list(range(len(tasks)))
    for number, task in enumerate(tasks):
        assert done[number].end - done[number].start == task.seconds
        assert all(done[other].end <= done[number].start for other in task.after)
    for pool in "abc":
        own = sorted((done[n].start, done[n].end) for n, task in enumerate(tasks) if pool in task.pools)
        assert all(before[1] <= after[0] for before, after in zip(own, own[1:], strict=False))
    end = max(each.end for each in done.values())
    assert longest(tasks) <= end <= sum(task.seconds for task in tasks)
    again = run(tasks)
    assert [(n, each.start, each.end) for n, each in again.items()] == [
        (n, each.start, each.end) for n, each in done.items()
    ]


@given(graphs())
@settings(max_examples=100)
def test_everything_begins_when_its_cause_ends(tasks: list[Task]) -> None:
    """So the chain of causes from the last end has no gaps: it is the critical path."""
    for found in run(tasks).values():
        assert found.start == (found.cause.end if isinstance(found.cause, Done) else 0)


@given(graphs(pools="a"))
@settings(max_examples=50)
def test_on_one_pool_times_add_up(tasks: list[Task]) -> None:
    assert max(each.end for each in run(tasks).values()) == sum(task.seconds for task in tasks)


def test_who_comes_first_is_served_first() -> None:
    tasks = [Task(2, (), ("a",)), Task(1, (), ("a",)), Task(1, (), ("b",)), Task(1, (2,), ("a",))]
    found = run(tasks)
    assert list(found) == [2, 0, 1, 3]
    assert [found[number].start for number in range(4)] == [0, 2, 0, 3]


def test_sleepers_of_one_time_wake_in_their_order() -> None:
    clock, woken = VirtualClock(), []

    def work(name: str, *seconds: float) -> None:
        for each in seconds:
            clock.sleep(each)
        woken.append(name)

    with clock.task_pool(3) as pool:
        for name, seconds in (("late", (2.0,)), ("twice", (1.0, 1.0)), ("again", (2.0,))):
            pool.submit(partial(work, name, *seconds))
    assert (woken, clock.now) == (["late", "again", "twice"], 2.0)


def test_a_crew_inside_another_one() -> None:
    """As a loop whose body is a graph of its own."""
    clock, ends = VirtualClock(), {}

    def leaf(name: str, seconds: float) -> None:
        clock.sleep(seconds)
        ends[name] = clock.now

    def loop() -> None:
        for turn in range(2):
            with clock.task_pool(2) as inner:
                inner.submit(partial(leaf, f"x{turn}", 1.0))
                inner.submit(partial(leaf, f"y{turn}", 3.0))

    with clock.task_pool(2) as pool:
        pool.submit(loop)
        pool.submit(partial(leaf, "beside", 4.0))
    assert ends == {"x0": 1, "y0": 3, "x1": 4, "y1": 6, "beside": 4} and clock.now == 6


def test_a_failure_ends_everything_with_its_own_words() -> None:
    clock, unwound = VirtualClock(), []
    lock = clock.new_lock()

    def waits() -> None:
        try:
            clock.sleep(100.0)
        finally:
            unwound.append("sleeper")

    def fails() -> None:
        clock.sleep(1.0)
        with lock.acquire(), clock.task_pool(1) as inner:
            inner.submit(waits)
            raise LookupError("no such thing")

    def work(what: Callable[[], None], tell: Callable[[Callable[[], None]], None]) -> None:
        try:
            what()
        except BaseException as error:
            tell(partial(_raise, error))

    with pytest.raises(LookupError, match="no such thing"), clock.task_pool(2) as pool:
        pool.submit(partial(work, waits, pool.post_event))
        pool.submit(partial(work, fails, pool.post_event))
        pool.next_event()()
    assert unwound == ["sleeper"] and clock.now == 1.0, "time stands still"


def _raise(error: BaseException) -> None:
    raise error


def test_waiting_for_nobody_is_a_mistake() -> None:
    clock = VirtualClock()
    with pytest.raises(AssertionError, match="everybody waits"), clock.task_pool(1) as pool:
        pool.next_event()


def test_locks_are_handed_over_in_the_order_of_asking() -> None:
    clock, order = VirtualClock(), []
    lock = clock.new_lock()

    def work(name: str) -> None:
        with ExitStack() as held:
            held.enter_context(lock.acquire())
            order.append(name)
            clock.sleep(1.0)

    with clock.task_pool(3) as pool:
        for name in "xyz":
            pool.submit(partial(work, name))
    assert order == ["x", "y", "z"] and clock.now == 3.0


@pytest.mark.parametrize("clock", [VirtualClock(), ThreadClock()])
def test_a_pool_of_cpus_has_a_place_for_each(clock: VirtualClock | ThreadClock) -> None:
    queues = DeviceQueues(Plan("p", (Pool("judges", 0, cpus=2),), (), (), ()), clock)
    taken: set[int] = set()
    most: list[int] = []
    mine = threading.Lock()

    def work() -> None:
        with queues.acquire_cpu("judges") as place:
            with mine:
                assert place not in taken
                taken.add(place)
                most.append(len(taken))
            if isinstance(clock, VirtualClock):
                clock.sleep(1.0)
            with mine:
                taken.remove(place)

    with clock.task_pool(5) as pool:
        for _ in range(5):
            pool.submit(work)
    assert len(most) == 5 and max(most) <= 2
    if isinstance(clock, VirtualClock):
        assert max(most) == 2 and clock.now == 3.0


@pytest.mark.parametrize("clock", [VirtualClock(), ThreadClock()])
def test_work_of_the_same_key_is_done_together(
    clock: VirtualClock | ThreadClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But nobody passes one who came before, and a place more is not the same place."""
    asked, ask = threading.Semaphore(0), LockPlaces.request

    def heard(places: LockPlaces, *given: Any) -> Any:
        served = ask(places, *given)
        asked.release()
        return served

    monkeypatch.setattr(LockPlaces, "request", heard)
    queues = DeviceQueues(Plan("p", (Pool("play", 2),), (), (), ()), clock)
    here, both = DeviceSet("play", frozenset({0})), DeviceSet("play", frozenset({0, 1}))
    at: list[set[str]] = []
    inside: set[str] = set()
    mine, begun = threading.Lock(), {name: threading.Event() for name in "abcde"}

    def work(name: str, seats: DeviceSet, key: str | None, wait: str) -> None:
        with queues.acquire_devices(seats, rank=1, key=key):
            with mine:
                inside.add(name)
                at.append(set(inside))
            begun[name].set()
            if isinstance(clock, VirtualClock):
                clock.sleep(1.0)
            elif wait:
                assert begun[wait].wait(NEVER)
            with mine:
                inside.remove(name)

    each = [
        ("a", here, "x", "b"),
        ("b", here, "x", ""),
        ("c", here, "y", ""),
        ("d", here, "x", ""),
        ("e", both, "x", ""),
    ]
    with clock.task_pool(5) as pool:
        for name, seats, key, wait in each:
            pool.submit(partial(work, name, seats, key, wait))
            if isinstance(clock, ThreadClock):
                assert asked.acquire(timeout=NEVER)
    assert {"a", "b"} in at
    assert not any({"c", other} <= found for found in at for other in "abde")
    assert not any("e" in found and len(found) > 1 for found in at)
    if isinstance(clock, VirtualClock):
        assert [sorted(found) for found in at] == [["a"], ["a", "b"], ["c"], ["d"], ["e"]] and clock.now == 4.0


def test_so_many_have_a_place_together() -> None:
    clock, most = VirtualClock(), []
    lock, inside = clock.new_lock(), []

    def work() -> None:
        with lock.acquire(0, frozenset({0}), "x"):
            inside.append(1)
            most.append(len(inside))
            clock.sleep(1.0)
            inside.pop()

    with clock.task_pool(2 * TOGETHER + 1) as pool:
        for _ in range(2 * TOGETHER + 1):
            pool.submit(work)
    assert max(most) == TOGETHER and clock.now == 3.0


@pytest.mark.parametrize("key", [None, "x"])
def test_some_places_are_given_back_before_the_others(key: str | None) -> None:
    """Who waits for these alone has them at once; who wants all of them waits, also with the same key."""
    clock, at = VirtualClock(), dict[str, float]()
    lock = clock.new_lock(3)

    def first() -> None:
        with lock.acquire_partly_releasable(0, frozenset({0, 1, 2}), key) as held:
            clock.sleep(1.0)
            assert held.release_some(frozenset({1, 2}))
            clock.sleep(4.0)

    def later(name: str, wanted: frozenset[int], own: str | None) -> None:
        clock.sleep(0.5 if own is None else 1.5)
        with lock.acquire(0, wanted, own):
            at[name] = clock.now
            clock.sleep(1.0)

    with clock.task_pool(4) as pool:
        pool.submit(first)
        pool.submit(partial(later, "freed", frozenset({1}), None))
        pool.submit(partial(later, "kept", frozenset({0}), None))
        pool.submit(partial(later, "all", frozenset({0, 1, 2}), "x"))
    assert at == {"freed": 1.0, "kept": 5.0, "all": 6.0}


def test_places_that_others_have_too_are_not_given_back() -> None:
    clock, left = VirtualClock(), list[bool]()
    lock, both = clock.new_lock(2), frozenset({0, 1})

    def work() -> None:
        with lock.acquire_partly_releasable(0, both, "x") as held:
            clock.sleep(1.0)
            left.append(held.release_some(frozenset({1})))
            clock.sleep(float(len(left)))

    with clock.task_pool(2) as pool:
        pool.submit(work)
        pool.submit(work)
    assert left == [False, False]


def test_nothing_is_kept_of_places_that_were_given_back() -> None:
    """Of a run of a million steps each lock would have it."""
    places = LockPlaces(4)
    for turn in range(100):
        for key in (None, "key"):
            wanted = frozenset({0, 1 + turn % 3})
            assert places.request(0, wanted, key, may_always_share, turn) == [(turn, wanted)]
            assert not places.release(wanted, key)
    assert sum(len(kept) for kept in vars(places).values() if isinstance(kept, Sized)) == 4
