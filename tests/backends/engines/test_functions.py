"""Functions of the language on padded tensors, as Python calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlgraph.backends.lowering.functions import ROW, TOKEN, argument_types, compute_padded
from rlgraph.ir.graph import Apply, Expr, Let, Node, Ref, tensor_node
from rlgraph.ir.types import Tensor as Type
from rlgraph.ops import infer_type

MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)


def apply(op: str, *args: Expr, to: str | None = None) -> Apply:
    axis = {None: None, "row": ROW, "row.token": TOKEN}[to]
    return Apply(op, args, infer_type(op, [arg.type for arg in args], axis), to)


def gae(arguments: dict[str, Any]) -> Node:
    """What the checker makes of the prelude's `gae` for these arguments."""
    ref = {name: Ref(name, kind) for name, kind in argument_types(arguments).items()}
    later = apply("mul", ref["gamma"], apply("next", ref["value"]))
    delta = apply("sub", apply("add", ref["reward"], later), ref["value"])
    found = apply("discount", delta, apply("mul", ref["gamma"], ref["lam"]))
    return tensor_node((Let("gae", found),), ("gae",))


def loop(reward: Tensor, value: Tensor, gamma: float, lam: float, mask: Tensor) -> Tensor:
    """Masked tokens are stepped over: value and advantage of the next valid one are carried past them."""
    found = torch.zeros_like(reward)
    for row in range(len(reward)):
        after = advantage = 0.0
        for t in reversed(range(reward.shape[1])):
            if mask[row, t]:
                delta = reward[row, t].item() + gamma * after - value[row, t].item()
                advantage = delta + gamma * lam * advantage
                after = value[row, t].item()
                found[row, t] = advantage
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [MASK, MASK.long(), None])
def test_gae(dtype: torch.dtype, mask: Tensor | None) -> None:
    generator = torch.Generator().manual_seed(0)
    arguments: dict[str, Any] = {
        name: torch.randn(3, 4, generator=generator, dtype=dtype) for name in ("reward", "value")
    }
    arguments |= {"gamma": 0.9, "lam": 0.95}
    found = compute_padded(gae(arguments), arguments, mask)
    assert found.dtype == dtype
    expected = loop(arguments["reward"], arguments["value"], 0.9, 0.95, torch.ones(3, 4) if mask is None else mask)
    torch.testing.assert_close(found, expected)


def test_results_of_every_width() -> None:
    x, row = torch.arange(12.0).reshape(3, 4), torch.tensor([1.0, 2.0, 3.0])
    arguments: dict[str, Any] = {"x": x, "row": row, "k": 2}
    ref = {name: Ref(name, kind) for name, kind in argument_types(arguments).items()}
    total = apply("sum", apply("mul", ref["x"], ref["row"]), to="row")
    for expr, expected in (
        (total, [4.0, 0.0, 24.0]),
        (apply("mul", apply("sum", total), ref["k"]), 56.0),
        (apply("sub", ref["x"], total), [[-4.0, -3.0, 0.0, -1.0], [0.0] * 4, [-16.0, 0.0, 0.0, 0.0]]),
        (
            apply("gt", ref["x"], ref["k"]),
            [[False, False, False, True], [False] * 4, [True, False, False, False]],
        ),
        (ref["k"], 2),
    ):
        assert compute_padded(tensor_node((Let("y", expr),), ("y",)), arguments, MASK).tolist() == expected


def test_rows_without_tokens() -> None:
    arguments: dict[str, Any] = {"x": torch.tensor([1.0, 2.0, 6.0])}
    x = Ref("x", argument_types(arguments)["x"])
    node = tensor_node((Let("y", apply("sub", x, apply("mean", x))),), ("y",))
    assert compute_padded(node, arguments).tolist() == [-2, -1, 3]


def test_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2))
    node = gae({"reward": reward, "value": value, "gamma": 0.9, "lam": 0.95})

    def function(reward: Tensor, value: Tensor) -> Tensor:
        return compute_padded(node, {"reward": reward, "value": value, "gamma": 0.9, "lam": 0.95}, MASK)

    assert torch.autograd.gradcheck(function, (reward, value))


def test_types() -> None:
    found = argument_types(
        {"a": 1, "b": 1.0, "c": True, "d": torch.tensor(1), "e": torch.ones(2), "f": torch.ones(2, 2) > 0}
    )
    assert found == {
        "a": Type("int"),
        "b": Type("float"),
        "c": Type("bool"),
        "d": Type("int"),
        "e": Type("float", ROW),
        "f": Type("bool", TOKEN),
    }


@pytest.mark.parametrize(
    ("arguments", "mask", "message"),
    [
        ({"x": torch.ones(3, 4), "y": torch.ones(3, 5)}, None, r"y is \[3, 5\], which does not fit \[3, 4\]"),
        ({"x": torch.ones(3, 4), "y": torch.ones(2)}, MASK, r"y is \[2\], which does not fit \[3, 4\]"),
        ({"x": torch.ones(3, 4)}, torch.ones(3), r"mask is \[3\], must be \[rows, tokens\]"),
    ],
)
def test_shapes_that_do_not_fit(arguments: dict[str, Any], mask: Tensor | None, message: str) -> None:
    node = tensor_node((Let("y", Ref("x", Type("float", TOKEN))),), ("y",))
    with pytest.raises(ValueError, match=message):
        compute_padded(node, arguments, mask)


def test_too_many_dimensions() -> None:
    with pytest.raises(ValueError, match="x has 3 dimensions"):
        argument_types({"x": torch.ones(1, 1, 1)})
