"""A new tensor operation is one record and one function: it is checked, folded, drawn and computed, and nothing else is
told of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = '''
import json
import torch
from rlgraph.ops import tensor
from rlgraph.ops.reference import REFERENCE

def cube(x):
    return x * x * x

# The whole of it.
tensor.TENSOR["cube"] = tensor.TensorOp("cube", "elementwise", 1, "same", "`x ** 3`", python=cube)
REFERENCE["cube"] = cube

import rlgraph
from rlgraph.ir.graph import Apply, Let, Ref, tensor_node
from rlgraph.ir.types import Axis, Tensor
from rlgraph.backends.lowering.lower import lower
from rlgraph.viz.dot import to_dot

TEXT = """algorithm a
model actor = causal_lm("m")
data prompts = jsonl("p.jsonl", batch=4)
step:
    rollout = actor.generate(prompts, max_tokens=8)
    train actor(lr=0.1):
        minimize mean(cube(actor.logprobs(rollout)) * cube(2))
    report size = mean(cube(rollout.length))
"""

class Rows:
    dtype = torch.float64

said = [str(each) for each in rlgraph.check(TEXT)]
wrong = [each.code for each in rlgraph.check(TEXT.replace("cube(2)", "cube(2, 3)"))]
compiled = rlgraph.compile(TEXT)
x = torch.tensor([-1.0, 2.0], dtype=torch.float64, requires_grad=True)
kind = Tensor("float", Axis("rows", "rows"))
lowered = lower(tensor_node((Let("y", Apply("cube", (Ref("x", kind),), kind)),), ("y",)))
y = lowered({"x": x}, Rows())["y"]
y.sum().backward()
print(json.dumps({
    "said": said,
    "wrong": wrong,
    "text": compiled.text(),
    "picture": to_dot(compiled.program),
    "values": y.tolist(),
    "gradient": x.grad.tolist(),
}))
'''


def test_a_record_and_a_function_are_all_of_a_new_operation() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["said"] == [] and found["wrong"]
    assert "cube(actor.logprobs) * 8" in found["text"] and "cube(2" not in found["text"]
    assert "cube(" in found["picture"]
    assert found["values"] == [-1.0, 8.0] and found["gradient"] == [3.0, 12.0]
