"""The transport of a simulation: what groups do takes the time that is predicted, and stand-ins come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path

import numpy as np

from rlgraph.backends.distributed.admission import blocks
from rlgraph.backends.distributed.race import Race
from rlgraph.backends.distributed.tails import Ending
from rlgraph.backends.distributed.transport import Coming, Move, Moved, Order
from rlgraph.backends.executor import Made, Part
from rlgraph.backends.frame import Frame
from rlgraph.backends.in_flight import Things
from rlgraph.backends.sim.batching import Ends, Member, Together
from rlgraph.backends.sim.batching import Rows as CopyRows
from rlgraph.backends.sim.fake_rows import Held, none
from rlgraph.backends.sim.fakes import StandIns
from rlgraph.backends.sim.log import Log
from rlgraph.backends.sim.orders import (
    batches_of,
    counts_of,
    model_in,
    parts_of,
    shared_out,
    stages_of,
    tables_of,
    title_of,
)
from rlgraph.backends.sim.sampled import AtWork, Dealt, PartEnds, SampledRows, last_of
from rlgraph.backends.sim.tails import moved
from rlgraph.backends.sim.works import Work, worker
from rlgraph.backends.step import Step
from rlgraph.backends.turns import Queues, seats
from rlgraph.backends.versions import Versions
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.types import Handle
from rlgraph.ops.nodes import NODES, code_of, model_of, needed, rows_each
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampled import NOTHING, Sampled
from rlgraph.passes.cost.tasks import Workload, turns_of
from rlgraph.passes.cost.time import Batch, Cost


@dataclass
class _Books:
    """Of one step."""

    rows: int = 0
    """That were generated or encoded."""
    tokens: int = 0
    """Of them, with their prompts."""
    ages: Counter[int] = field(default_factory=Counter)
    """Rows that a model sampled which the program trains: how many, by how many versions its weights were behind those
    that the step trains."""
    trained: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """For each table the numbers of the rows that something was trained on, of each order."""
    sent: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    """For each value and group the numbers of the rows that have come there."""


class SimTransport:
    """Orders are done, and weights moved, in the time of a log's clock."""

    def __init__(self, program: Program, plan: Plan, queues: Queues, workload: Workload, seed: int, log: Log) -> None:
        self.program, self.plan, self.queues, self.log = program, plan, queues, log
        self._asking = log.clock.lock()
        """Of those that want several places of a pool at once, one takes them at a time."""
        self.versions = Versions(program)
        self.standins = StandIns(program, workload, self.versions, seed)
        self._books: dict[int, _Books] = {}
        """Of each step that is under way."""
        self._over = 0
        """The last step that is over."""
        self.together = Together()
        self._sampling: list[AtWork] = []
        """Where newer weights come meanwhile."""

    # Orders

    def fire(self, order: Order) -> Made:
        made = self.standins.made(order)
        self.work(order, made)
        self.count(order, made)
        return made

    def fire_together(self, orders: Sequence[Order]) -> Sequence[Made]:
        made = [self.standins.made(order) for order in orders]
        group, step = orders[0].group, orders[0].step.number
        fired = self.log.fired()
        with self.queues.turn(orders[0].seats, rank=step):
            works, spent = list[tuple[str, list[Batch]]](), dict[str, float]()
            for order, own in zip(orders, made, strict=True):
                self.log.observer.firing(order.node, group.pool)
                works.append((order.frame.values[model_of(order.node)], batches_of(order.node, order.frame, own)))
                for name, seconds in self.begun(order, works[-1][1]).items():
                    # One order says what all have to do.
                    spent[name] = (
                        max(spent.get(name, 0.0), seconds) if name == "order" else spent.get(name, 0.0) + seconds
                    )
            fusion = self.log.predictor.fused(works)
            spent |= parts_of(fusion.cost)
            rows = max(counts_of(order.node, order.frame, own)[0] for order, own in zip(orders, made, strict=True))
            title = "train " + ", ".join(model for model, _ in works)
            op, counts = orders[0].node.op, (rows, 0)
            groups = [*{order.group.name: order.group for order in orders}.values()]
            work = self.log.take(title, op, groups, step, fired, spent, counts, stages=lambda: fusion)
            for order in orders:
                self.log.observer.fired(order.node, work.seconds, work.tokens, group.pool)
        for order, own in zip(orders, made, strict=True):
            self.count(order, own)
        return made

    def count(self, order: Order, made: Made) -> None:
        """What the step is about."""
        node = order.node
        if NODES[node.op].generates or node.op == "encode":
            rows, books = made.values[node.name], self.books(order.step)
            books.rows += rows.rows
            books.tokens += int(rows.prompt.sum() + rows.response.sum())
        if NODES[node.op].generates:
            model, step = order.frame.values[model_of(node)], order.step
            if self.versions.after(model, step.number):
                assert order.version is not None
                books.ages[max(0, self.versions.at(model, step) - order.version)] += rows.rows
        if NODES[node.op].trains:
            books = self.books(order.step)
            for table in tables_of(node, order.frame):
                books.trained.setdefault(table.name, []).append(table.numbers)

    def work(self, order: Order, made: Made) -> None:
        """Waits for the group's pool, and until the work is done."""
        node, frame, group = order.node, order.frame, order.group
        fired = self.log.fired()
        with ExitStack() as held:
            if group.code:
                # Each place of a pool of cpus is a worker by itself, and no other one knows what it does.
                copy: int | None = held.enter_context(self.queues.place(group.pool, order.step.number))
            else:
                copy = order.copy
                held.enter_context(self.queues.turn(order.seats, rank=order.step.number, key=order.key))
            self.log.observer.firing(node, group.pool)
            batches = batches_of(node, frame, made)
            spent = self.begun(order, batches)
            rows: SampledRows | None = None
            if NODES[node.op].generates:
                each = self.sampling_copies(order, shared_out(made.values[node.name], order), order.copy or 0)
                slowest = max((own.alone.cost for own in each), key=lambda cost: cost.seconds)
                rows = SampledRows(each, last_of, slowest.seconds)
                answering = self.answering(node, order, made)
                alone = parts_of(slowest) | answering
            else:
                alone = parts_of(self.cost(order, made, batches))
            who = group if copy is None else replace(group, name=worker(group.name, copy))
            told = counts_of(node, frame, made)
            with self.sampling(order, made, rows), self.beside(order, rows, sum(spent.values())):
                if rows is not None and rows.later:
                    # It came to others.
                    alone = {"sampling": rows.until} | answering
                    rows.later.clear()
                idle, later = (rows.idle, rows.later) if rows is not None else (lambda: 0.0, None)
                title, step, stages = title_of(node), order.step.number, stages_of(order, batches, self.log)
                work = self.log.take(title, node.op, [who], step, fired, spent | alone, told, later, idle, stages)
            self.log.observer.fired(node, work.seconds, work.tokens, group.pool)
            runner = self.plan.runs(code_of(node))
            if runner is not None and NODES[node.op].with_model:
                self.answered(order, runner, work)

    def answering(self, node: Node, order: Order, made: Made) -> dict[str, float]:
        """What an environment takes that has no pool of its own: each copy has its rows answered by processes of its
        own."""
        turns = turns_of(node)
        if not turns or self.plan.runs(code_of(node)) is not None:
            return {}
        rows = max(shared.rows for shared in shared_out(made.values[node.name], order))
        busiest = ceil(rows / self.program.workers(code_of(node)))
        return {"environment": self.log.predictor.host(node.op, turns * busiest).seconds}

    def sampling_copies(self, order: Order, shared: Sequence[Held], first_copy: int) -> list[CopyRows]:
        """Of each copy of a group, from one of them on, the rows that it samples, in the order in which they begin;
        copies without rows take no time."""
        node, found = order.node, list[CopyRows]()
        model, kept, samples = order.frame.values[model_of(node)], rows_each(node), node.attr("n")
        for copy, rows in enumerate(shared, first_copy):
            first = rows.in_turn(kept)
            prompts, answers = (each[first].reshape(-1).tolist() for each in rows.begun(kept, samples))
            alone = self.log.predictor.sampled(model, node.op, prompts, answers, samples, copy)
            found.append(CopyRows(alone, prompts, answers))
        return found

    @contextmanager
    def beside(self, order: Order, rows: SampledRows | None, after: float) -> Iterator[None]:
        """Rows of an order are sampled, from so many seconds on, together with those of others."""
        if rows is None or order.key is None:
            yield
            return
        with self.together.sampled(order.seats, Member(self.log.clock.now + after, rows.copies, rows.moved)):
            yield

    def answered(self, order: Order, runner: Group, acted: Work) -> None:
        """What an environment that has a pool of its own makes of the actions of all turns, as many as there may be.
        Copies that act wait meanwhile: what is said turn by turn is put together."""
        node, fired = order.node, self.log.fired()
        busy = min(acted.rows, runner.mesh.size)
        with self._asking.take(order.step.number), ExitStack() as held:
            places = [held.enter_context(self.queues.place(runner.pool, order.step.number)) for _ in range(busy)]
            who = [replace(runner, name=worker(runner.name, place)) for place in places]
            actions = node.attr("max_turns") * -(-acted.rows // max(1, busy))
            spent = {"overhead": self.log.predictor.host(node.op, actions).seconds}
            self.log.take(node.attr("env"), "call", who, order.step.number, fired, spent, (acted.rows, 0))

    def parts(self, order: Order, sizes: Sequence[int]) -> Iterator[Part]:
        """Parts are dealt to the group's copies in turn; one is there when its last row has ended on its copy."""
        node, frame, group = order.node, order.frame, order.group
        fired = self.log.fired()
        turn = self.queues.turn(order.seats, rank=order.step.number, key=order.key)
        with turn as devices, ExitStack() as sampling:
            self.log.observer.firing(node, group.pool)
            whole = self.standins.made(order)
            spent, began, tokens = self.begun(order, batches_of(node, frame, whole)), self.log.clock.now, 0
            bounds = list(pairwise(accumulate(sizes, initial=0)))
            slices = [self.slice(node, frame, *each) for each in bounds]
            made = [self.standins.made(replace(order, frame=each)) for each in slices]
            whole, *made = self.given_up(order, [whole, *made])
            shares = blocks(order.expected, sizes, group.mesh.length("dp"))
            held = [each.values[node.name] for each in made]
            dealt = [Dealt(mine, [held[number] for number in mine], rows_each(node)) for mine in shares]
            copies = [
                CopyRows(NOTHING, (), ()) if own.rows is None else self.sampling_copies(order, [own.rows], copy)[0]
                for copy, own in enumerate(dealt)
            ]
            rows, ends = SampledRows(copies, last_of), PartEnds(dealt, rows_each(node), node.attr("n"))
            sampling.enter_context(self.sampling(order, whole, rows))
            sampling.enter_context(self.beside(order, rows, sum(spent.values())))
            left, who = list(range(len(sizes))), [group]
            ending = Ending.of(order, devices, [each.values[node.name].rows for each in made], shares)
            while left:
                number = min(left, key=ends(rows.ends).__getitem__)
                left.remove(number)
                rows.begin(lambda own, number=number: ends(own)[number])  # type: ignore[misc]
                spent["sampling"] = rows.until - rows.there
                told, step = counts_of(node, slices[number], made[number]), order.step.number
                work = self.log.take(title_of(node), node.op, who, step, fired, spent, told, rows.later, rows.idle)
                rows.there, tokens = rows.until, tokens + work.tokens
                # The next part goes on where this one ended.
                spent, fired = {}, self.log.fired()
                self.count(order, made[number])
                if ending is not None and (to := ending.ended(number)) is not None:
                    rows.move(ending.here, self.moved(order, dealt, rows, to))
                    who = [replace(group, name=worker(group.name, copy)) for copy in ending.here]
                if not left:
                    sampling.close()
                yield number, made[number]
            self.log.observer.fired(node, self.log.clock.now - began, tokens, group.pool)

    def given_up(self, order: Order, made: list[Made]) -> list[Made]:
        """The rows of an order, and of its parts, of which those are given up that are longer than what is wanted."""
        if order.race is None:
            return made
        race, name = Race(order.race), order.node.name
        race.ended(made[0].values[name].longest(rows_each(order.node)).tolist())
        if race.limit is None:
            return made
        return [replace(each, values={name: each.values[name].until(race.limit)}) for each in made]

    def moved(self, order: Order, dealt: Sequence[Dealt], rows: SampledRows, to: Mapping[int, int]) -> Ends:
        """When the rows of each copy end, where blocks of them go to other copies now."""
        model, samples = order.frame.values[model_of(order.node)], order.node.attr("n")
        places: dict[tuple[int, int], int] = {}
        for copy, own in enumerate(dealt):
            for part, groups in own.places:
                if part in to:
                    going = (int(group) * samples + sample for group in groups for sample in range(samples))
                    places |= {(copy, row): to[part] for row in going if rows.ends[copy][row] > rows.there}

        def sampling(copy: int, prompts: Sequence[float], answers: Sequence[float]) -> Sampled:
            return self.log.predictor.sampled(model, order.node.op, prompts, answers, 1, copy)

        return moved(rows.copies, rows.ends, rows.there, places, sampling)

    def slice(self, node: Node, frame: Frame, start: int, stop: int) -> Frame:
        """Some rows of a node's unit."""
        assert node.unit is not None and node.unit.axis is not None
        return frame.slice(node.unit.axis, np.arange(start, stop), node.inputs)[0]

    def weigh(self, order: Order) -> Sequence[float]:
        self.work(order, Made())
        return self.standins.expected(order)

    def choose(self, order: Order) -> np.ndarray:
        self.work(order, Made())
        return self.standins.choose(order)

    def books(self, step: Step) -> _Books:
        """Those of a step; what a batch does that goes on when it is over is told with the next one."""
        return self._books.setdefault(max(step.number, self._over + 1), _Books())

    def finish(self, step: Step, things: Things) -> dict[str, float]:
        """Rows and tokens that the step was about; of the rows, how many were trained on, and how many were of which
        age."""
        books, self._over = self._books.pop(step.number, _Books()), step.number
        trained = sum(np.unique(np.concatenate(numbers)).shape[0] for numbers in books.trained.values())
        found = {"rows": books.rows, "tokens": books.tokens, "trained": trained}
        return {name: float(value) for name, value in found.items()} | {
            f"age/{age}": float(rows) for age, rows in books.ages.items()
        }

    # Weights

    def move(self, move: Move) -> Coming:
        fired = self.log.fired()
        with self.queues.turn(*move.seats):
            with move.shifting():
                """What waking up takes is told with the work, and weights that come do not come from the host."""
            ends = move.sender.name, move.receiver.name
            seconds = self.log.predictor.sync(move.source, *ends, move.copies).seconds
            taking = move.receiver
            if move.copy is not None:
                taking = replace(taking, name=worker(taking.name, move.copy))
            groups = (move.sender, taking)
            work = self.log.take(f"sync {move.source}", "sync", groups, move.step.number, fired, {"sync": seconds})
        moved = Moved(work.seconds)
        return lambda: moved

    def connect(self, move: Move) -> None:
        """Nothing has to be known before."""

    def refresh(self, move: Move, going: AbstractContextManager[int | None]) -> Moved | None:
        """The group pauses until the weights are there, and reads its rows again."""
        fired = self.log.fired()
        with self.queues.turn(seats(move.sender)), going as version:
            if version is None:
                return None
            ends = move.sender.name, move.receiver.name
            seconds = self.log.predictor.sync(move.source, *ends, move.copies).seconds
            at_work = self.at_work(move)
            # Copies that take them one after the other pause once each, at about the same time.
            if at_work and (at_work[0].order.copy is not None or not move.copy):
                self.pause(at_work, seconds, self.plan.holding(move.target, move.receiver.name).keep)
            # Of the receiver it is a part of its work.
            self.log.take(f"sync {move.source}", "sync", [move.sender], move.step.number, fired, {"sync": seconds})
        return Moved(seconds)

    def at_work(self, move: Move) -> list[AtWork]:
        """Who samples where weights come."""
        to = move.seats[1]
        seated = [(each.order.seats, each) for each in self._sampling]
        return [each for at, each in seated if at.pool == to.pool and to.places <= at.places]

    @contextmanager
    def sampling(self, order: Order, made: Made, rows: SampledRows | None) -> Iterator[None]:
        """Newer weights come while an order is done, where they can."""
        if order.sampling is None or rows is None:
            yield
            return
        sampling = AtWork(order, made.values[order.node.name], self.log.clock.now, rows.later)
        self._sampling.append(sampling)
        try:
            yield
        finally:
            self._sampling = [each for each in self._sampling if each is not sampling]

    def pause(self, at_work: Sequence[AtWork], seconds: float, kept: bool) -> None:
        """Who samples waits for new weights, and reads again what is not kept."""
        order = at_work[0].order
        going = self.together.going(order.seats, self.log.clock.now)
        if going is None:
            reading = 0.0 if kept else sum(map(self.reading, at_work))
        else:
            reading = 0.0 if kept else self.rereading(order, going)
        why = {"sync": seconds, "reading again": reading}
        if going is not None:
            self.together.pause(order.seats, self.log.clock.now, why)
            return
        for each in at_work:
            for name, more in why.items():
                each.later[name] = each.later.get(name, 0.0) + more

    def rereading(self, order: Order, tokens: Sequence[float]) -> float:
        """Seconds in which rows of so many tokens are read."""
        if not tokens:
            return 0.0
        batch = Batch(float(len(tokens)), Lengths.of(tokens), Lengths.of([1]))
        model = order.frame.values[model_of(order.node)]
        return self.log.predictor.work(model, order.node.op, [batch], order.copies).seconds

    def reading(self, sampling: AtWork) -> float:
        """Seconds in which a group reads what it has of rows that have not ended: all have as many tokens."""
        order, rows, past = sampling.order, sampling.rows, self.log.clock.now - sampling.began
        node, model = order.node, order.frame.values[model_of(order.node)]
        batch = rows.sampling(rows_each(node), node.attr("n"))

        def until(tokens: int) -> float:
            cut = replace(batch, response=batch.response.capped(tokens))
            return self.log.predictor.work(model, node.op, [cut]).seconds

        least, most = 0, int(rows.response.max(initial=0))
        while least + 1 < most:
            middle = (least + most) // 2
            least, most = (middle, most) if until(middle) <= past else (least, middle)
        left = rows.response > least
        return self.rereading(order, (rows.prompt[left] + least).tolist())

    def adopt(self, move: Move) -> None:
        assert move.update is not None
        with self.queues.turn(seats(move.receiver), rank=move.update.number):
            """It takes no time that anybody counts."""

    # The end

    def save(self, model: str, owner: Group, folder: Path) -> None:
        raise NotImplementedError("a simulation has no weights")

    def abort(self, why: BaseException) -> None:
        """The clock ends what waits."""

    def stop(self) -> None: ...

    # Time

    def begun(self, order: Order, batches: Sequence[Batch]) -> dict[str, float]:
        """What passes before the work itself: the order, the model's way back to the devices, the rows' way to the
        group."""
        node, frame, group = order.node, order.frame, order.group
        predictor, model = self.log.predictor, model_in(node, frame)
        spent = {"order": predictor.order(group.name, order.copies).seconds}
        if model is not None:
            with order.shifting() as shift:
                if shift.wake:
                    spent["onload"] = predictor.onload(model, group.name, node.op, batches).seconds
        sent: dict[str, float] = {}
        for name in needed(node):
            value, kind = frame.values.get(name), frame.types[name]
            if isinstance(value, Held) and value.where != group.name and not isinstance(kind, Handle):
                # What is computed for a row travels with it: a token's bytes are those of all of its values.
                sent[value.where] = max(sent.get(value.where, 0.0), self.fresh(value, order).entries(kind))
        spent["transfer"] = sum(
            predictor.rows(source, group.name, tokens, order.copies).seconds
            for source, tokens in sent.items()
            if tokens
        )
        return {name: seconds for name, seconds in spent.items() if seconds}

    def fresh(self, value: Held, order: Order) -> Held:
        """The rows that the group does not have yet; now it has them."""
        sent, key = self.books(order.step).sent, (value.name, order.group.name)
        there = sent.get(key, none())
        found = value.pick(~np.isin(value.numbers, there))
        sent[key] = np.concatenate([there, found.numbers])
        return found

    def cost(self, order: Order, made: Made, batches: Sequence[Batch]) -> Cost:
        """Of the work itself."""
        node, frame = order.node, order.frame
        model = model_in(node, frame)
        if model is None:
            rows = counts_of(node, frame, made)[0]
            if self.plan.runs(code_of(node)) is None:
                rows = ceil(rows / self.program.workers(code_of(node)))
            return self.log.predictor.host(node.op, rows)
        return self.log.predictor.work(model, node.op, batches, order.copies)
