"""The verifier, on graphs that are broken on purpose: one for each rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rlgraph.ir.graph import Graph, Node, Program, Value
from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.types import Axis, StateHandle, Tensor
from rlgraph.ir.verify import BrokenGraph, verify
from rlgraph.ops import NODES, infer_type

GOOD = """program grpo
axis prompts
axis rollout in prompts
axis rollout.token inside rollout
model actor = causal_lm("m")
data prompts = jsonl("p.jsonl", batch=8)

phase step(actor@0: model<actor>, prompts@0: cursor<prompts>):
  prompts: table[prompts; data=?], prompts@1: cursor<prompts> <- read(prompts@0)
  rollout: table[rollout; token=rollout.token; sampled=1.0; data=?] <- generate(actor@0, prompts) {n=4, max_tokens=8, key="rollout"}
  reward: float[rollout] <- call(rollout) {func="f", names=[]}
  old: float[rollout.token] <- column(rollout) {name="logprobs"}
  adv: float[rollout] = tensor:
    centre = mean(reward, to=prompts)
    adv = reward - centre
  actor@2: model<actor> <- minibatch(actor@0, rollout, old, adv) {axis="rollout", key="minibatch"}:
    given actor@1: model<actor>
    actor@3: model<actor> <- train(actor@1, rollout, old, adv) {lr=0.001}:
      given actor@4: model<actor>
      logp: float[rollout.token] <- logprobs(actor@4, rollout)
      loss: float = mean(-exp(logp - old) * adv)
      yield loss
    yield actor@3
  best: float = max(reward)
  report(best) {names=["best"]}
  yield actor@2, prompts@1
"""


def problems(program: Program) -> list[str]:
    with pytest.raises(BrokenGraph) as caught:
        verify(program, NODES, infer_type)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_a_good_program_passes() -> None:
    verify(parse_program(GOOD), NODES, infer_type)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("read(prompts@0)", "read(prompts@9)", "prompts: prompts@9 used before it is made"),
        ("call(rollout)", "call(rollout, old)", "reward: old used before it is made"),
        (
            "  report(best)",
            '  rollout: float[rollout] <- call(rollout) {func="f", names=[]}\n  report(best)',
            "rollout is made twice, the second time by call",
        ),
        ("      loss: float = mean", "      old: float = mean", "old is made twice, the second time by tensor"),
        ("given actor@4", "given actor@1", "actor@1 is made twice, the second time by given"),
        ("call(rollout)", "ring(rollout)", "reward: no operation is called ring"),
        ("call(rollout)", "call(actor@0)", "reward: call takes table tensor*, is given model<actor>"),
        ("call(rollout)", "call()", "reward: call takes table tensor*, is given "),
        (
            "read(prompts@0)",
            "read(prompts@0, actor@0)",
            "prompts: read takes cursor, is given cursor<prompts>, model<actor>",
        ),
        (
            "reward: float[rollout] <- call(rollout)",
            "reward: float[rollout], more: cursor<prompts> <- call(rollout)",
            "reward: call makes tensor tensor*, not float[rollout], cursor<prompts>",
        ),
        (
            "  report(best)",
            "  again: cursor<prompts> <- call(rollout)\n  report(best)",
            "again: call makes tensor tensor*, not cursor<prompts>",
        ),
        ("yield actor@2, prompts@1", "yield actor@2, prompts@7", "yields prompts@7, which nothing makes"),
        # Values of a region end with it.
        ("max(reward)", "max(logp)", "best: logp used before it is made"),
        ("yield actor@2, prompts@1", "yield actor@3, prompts@1", "yields actor@3, which nothing makes"),
        (
            "minibatch(actor@0, rollout, old, adv)",
            "minibatch(actor@0, rollout, old, reward)",
            "actor@2: captures ('rollout', 'old', 'adv'), is given ('rollout', 'old', 'reward')",
        ),
        (
            "minibatch(actor@0, rollout, old, adv)",
            "minibatch(actor@0, rollout, old)",
            "actor@2: captures ('rollout', 'old', 'adv'), is given ('rollout', 'old')",
        ),
        ("      yield loss", "      yield loss, logp", "actor@3: yields 2 values, makes 1"),
        ("given actor@4: model<actor>", "given actor@4: model<ref>", "actor@3: carries "),
        ("phase step(actor@0: model<actor>", "phase step(actor@0: model<critic>", "critic is not declared"),
        ("yield actor@2, prompts@1", "yield actor@2", "given ["),
        ("yield actor@2, prompts@1", "yield prompts@1, actor@2", "given ["),
        ("data prompts = ", "data questions = ", "prompts is not declared"),
        ("n=4, ", "samples=4, ", "rollout: generate: has no attribute `samples`"),
        ("n=4, ", "n=4, n=5, ", "rollout: generate: says an attribute twice"),
        ("max_tokens=8, ", "", "rollout: generate: lacks `max_tokens`"),
        ("n=4", "n=0", "rollout: generate: `n` is at least 1, not 0"),
        ("n=4", "n=4.0", "rollout: generate: `n` is int, not 4.0"),
        ("n=4", "n=true", "rollout: generate: `n` is int, not True"),
        ("n=4", "stop=4", "rollout: generate: `stop` is texts, not 4"),
        ("n=4", "temperature=null", "rollout: generate: `temperature` is float, not None"),
        ('axis="rollout"', 'axis="others"', "actor@2: minibatch: `axis` is an axis, and no axis is called 'others'"),
        ("lr=0.001", 'lr="fast"', "actor@3: train: `lr` is rate, not 'fast'"),
        ("lr=0.001", 'lr=0.001, micro="rollout"', "actor@3: train: has `micro`, which no pass has written yet"),
        ("max(reward)", "max(reward) per rollout", "best: has a unit, which no pass has written yet"),
    ],
)
def test_broken_text(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    found = problems(parse_program(GOOD.replace(old, new)))
    assert any(each.startswith(f"phase step: {problem}") for each in found), found


def change(program: Program, name: str, edit: Callable[[Node], Node]) -> Program:
    """The program with another node in place of that which makes `name`, at any depth."""

    def inside(graph: Graph) -> Graph:
        nodes = [replace(node, regions=tuple(map(inside, node.regions))) for node in graph.nodes]
        return replace(graph, nodes=tuple(edit(node) if node.name == name else node for node in nodes))

    return program.with_graphs({phase.name: inside(phase.graph) for phase in program.phases})


def edit_expr(node: Node, place: int, **changes: object) -> Node:
    lets = list(node.body)
    lets[place] = replace(lets[place], expr=replace(lets[place].expr, **changes))  # type: ignore[arg-type]
    return replace(node, body=tuple(lets))


STRANGER = Axis("others", "others")

BREAKS: dict[str, tuple[str, Callable[[Node], Node], str]] = {
    "no region": ("actor@3", lambda node: replace(node, regions=()), "actor@3: train has no region"),
    "a region too many": (
        "reward",
        lambda node: replace(node, regions=(Graph(),)),
        "reward: call cannot have a region",
    ),
    "an input that the body does not use": (
        "best",
        lambda node: replace(node, inputs=("reward", "old")),
        "best: uses ['reward'], is given ['old', 'reward']",
    ),
    "an output that is not in the body": (
        "best",
        lambda node: replace(node, outputs=(*node.outputs, Value("worst", Tensor("float")))),
        "best: worst is not of its body, or of another type",
    ),
    "an output of another type": (
        "best",
        lambda node: replace(node, outputs=(Value("best", Tensor("int")),)),
        "best: best is not of its body, or of another type",
    ),
    "an expression marked with another type": (
        "best",
        lambda node: edit_expr(node, 0, type=Tensor("int")),
        "best: max makes float, is marked int",
    ),
    "an operation that does not exist": (
        "best",
        lambda node: edit_expr(node, 0, op="maxi"),
        "best: 'maxi'",
    ),
    "too few arguments": (
        "adv",
        lambda node: edit_expr(node, 1, args=node.body[1].expr.args[:1]),  # type: ignore[union-attr]
        "adv: sub takes 2 arguments, not 1",
    ),
    "a reduction to an axis that does not exist": (
        "best",
        lambda node: edit_expr(node, 0, axis="others"),
        "best: 'others'",
    ),
    "a reduction to an inner axis": (
        "best",
        lambda node: edit_expr(node, 0, axis="rollout.token"),
        "best: max cannot go from rollout to rollout.token",
    ),
    "a name used as another type": (
        "best",
        lambda node: edit_expr(node, 0, args=(replace(node.body[0].expr.args[0], type=Tensor("int", STRANGER)),)),  # type: ignore[union-attr]
        "best: reward is float[rollout], used as int[others]",
    ),
    "a name of the body that is taken": (
        "adv",
        lambda node: replace(node, body=(replace(node.body[0], name="old"), *node.body)),
        "adv: old is made twice",
    ),
    "a let that comes too late": (
        "adv",
        lambda node: replace(node, body=node.body[::-1]),
        "adv: centre is None, used as float[prompts]",
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_broken_graph(case: str) -> None:
    name, edit, problem = BREAKS[case]
    found = problems(change(parse_program(GOOD), name, edit))
    assert any(each.startswith(f"phase step: {problem}") for each in found), found


@pytest.mark.parametrize("name", ["ref", "other"])
def test_a_copy_of_no_model_before_it(name: str) -> None:
    actor = 'model actor = causal_lm("m")\n'
    told = problems(parse_program(GOOD.replace(actor, f'{actor}model ref = frozen(copy("{name}")) : causal_lm\n')))
    assert told == [f"model ref: no model before it is called {name}"]


def test_every_problem_is_said_at_once() -> None:
    text = (
        GOOD.replace("call(rollout)", "ring(rollout)")
        .replace("max(reward)", "max(old) + 1")
        .replace("data prompts", "data p")
    )
    program = change(
        parse_program(text),
        "best",
        lambda node: replace(node, outputs=(Value("best", Tensor("int")),)),
    )
    assert len(problems(program)) == 3


def test_each_phase_is_named() -> None:
    program = parse_program(GOOD)
    broken = replace(
        program.phases[0],
        name="warm",
        graph=replace(program.phases[0].graph, outputs=("nothing", "prompts@1")),
    )
    assert problems(replace(program, phases=(broken, *program.phases))) == [
        "phase warm: yields nothing, which nothing makes"
    ]


def test_a_handle_of_another_kind() -> None:
    program = parse_program(GOOD)
    graph = program.phases[0].graph
    graph = replace(graph, inputs=(Value("actor@0", StateHandle("buffer", "actor")), graph.inputs[1]))
    assert any("generate takes model" in each for each in problems(program.with_graphs({"step": graph})))
