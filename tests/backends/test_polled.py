"""How far processes are that are waited for: the leaders of replicas are asked, and nobody waits for the answers."""

from __future__ import annotations

from typing import Any

from rlgraph.backends.ray.failures import CallContext
from rlgraph.backends.ray.progress_poll import ProgressPoll
from rlgraph.backends.ray.rank_requests import NodeProgress
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.steps import SilentObserver
from rlgraph.ir.graph import Node
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import Group, Plan, Pool

NODE = Node("generate", id=4)
GROUP = Group("play_all", "play", "transformers", make_mesh(dp=2, tp=2), (0, 1, 2, 3))
PLAN = Plan("small", (Pool("play", 4),), (GROUP,), (), ())
EVERYBODY = CallContext(tuple(("play_all", rank) for rank in range(4)), "generate", NODE)


class Fakes:
    """Processes that answer when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Address] = []
        self.answers: dict[Address, NodeProgress | None] = {}

    def call(self, who: Address, method: object) -> Any:
        assert method is Worker.node_progress
        self.asked.append(who)
        return who

    def answers_if_ready(self, references: list[Address]) -> list[NodeProgress | None] | None:
        return [self.answers[who] for who in references] if self.answers.keys() >= set(references) else None


class Told(SilentObserver):
    def __init__(self) -> None:
        self.told: list[tuple[int, int, str, int, str]] = []

    def node_progress(self, node: Node, done: int, total: int, unit: str, tokens: int, pool: str = "") -> None:
        self.told.append((done, total, unit, tokens, pool))


def test_the_leaders_of_replicas_are_asked_and_their_rows_added() -> None:
    fakes, watch = Fakes(), Told()
    poll = ProgressPoll(PLAN, fakes, watch)  # type: ignore[arg-type]
    poll.poll_progress(EVERYBODY)
    poll.poll_progress(EVERYBODY)
    first, second = fakes.asked
    assert watch.told == [] and {first[0], second[0]} == {"play_all"} and first != second
    fakes.answers = {first: NodeProgress(4, (3, 8, 30), "row"), second: NodeProgress(4, (5, 8, 44), "row")}
    poll.poll_progress(EVERYBODY)
    assert watch.told == [(8, 16, "row", 74, "play")]
    # One has not begun with this work, and counts as much as the other.
    fakes.answers[second] = NodeProgress(3, (8, 8, 80), "row")
    poll.poll_progress(EVERYBODY)
    poll.poll_progress(EVERYBODY)
    assert watch.told[1:] == [(6, 16, "row", 60, "play")]
    fakes.answers = {first: None, second: None}
    poll.poll_progress(EVERYBODY)
    poll.poll_progress(EVERYBODY)
    assert len(watch.told) == 2


def test_of_what_is_no_work_of_a_node_nothing_is_asked() -> None:
    fakes = Fakes()
    ProgressPoll(PLAN, fakes, Told()).poll_progress(CallContext((("play_all", 0),), "saving"))  # type: ignore[arg-type]
    assert fakes.asked == []
