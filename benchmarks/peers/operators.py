"""Where the time of some code goes, by kinds of operators, in CPU seconds: other work on the machine is not counted."""

# ruff: noqa: B905

import re
import statistics
import time
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = (  # The first that fits.
    ("attention", r"scaled_dot_product|^bmm$|^baddbmm"),
    ("matrix products", r"^mm$|^addmm|linear|^addmv|^mv$|matmul"),
    ("optimizer", r"adam|_foreach|_amp"),
    ("views, allocation", r"view|^t$|transpose|slice|^select$|expand|squeeze|permute|strided|alias|detach|split|empty"),
    ("softmax, sampling", r"softmax|multinomial|cumsum|searchsorted|sort|topk|exp|log|amax|argmax|nll|isfinite|isin"),
    (
        "copies",
        r"copy|clone|^cat$|index|gather|scatter|select|embedding|fill|zero|full|repeat|stack|where|tri[lu]",
    ),
    ("elementwise, sums", ""),
)


def idle():
    """CPU seconds that a call of an operator is counted with which does nothing."""
    x, found = torch.zeros(8), []
    for _ in range(2000):
        began = time.thread_time_ns()
        torch.ops.aten.alias.default(x)
        found.append(time.thread_time_ns() - began)
    return statistics.median(found) / 1e9


class Operators(TorchDispatchMode):
    """Counts the CPU seconds that operators of this thread work below autograd, while the context lasts; what their
    calls take is not counted."""

    def __init__(self):
        super().__init__()
        self.call_s = idle()
        self.part, self.steps = "", 0
        self.seconds, self.calls = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        began = time.thread_time_ns()
        out = func(*args, **(kwargs or {}))
        spent = time.thread_time_ns() - began
        key = self.part, kind_of(func._overloadpacket.__name__)
        self.seconds[key] += spent / 1e9 - self.call_s
        self.calls[key] += 1
        return out

    def table(self, parts):
        """parts: {name: CPU seconds of a step without counting}. Lines of a Markdown table, a step's milliseconds and
        calls."""
        rows = []
        for kind, _ in KINDS:
            found = [
                (1e3 * self.seconds[part, kind] / self.steps, self.calls[part, kind] / self.steps) for part in parts
            ]
            rows.append([kind, *(f"{spent:.0f} ({calls:.0f})" for spent, calls in found)])
        ours = [sum(self.seconds[part, kind] for kind, _ in KINDS) / self.steps for part in parts]
        rest = [f"{1e3 * (whole - own):.0f}" for whole, own in zip(parts.values(), ours)]
        rows += [
            ["calls: Python, autograd, dispatch", *rest],
            ["all", *(f"{1e3 * whole:.0f}" for whole in parts.values())],
        ]
        heads = ["CPU ms (calls)", *parts]
        return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def kind_of(name):
    return next(kind for kind, pattern in KINDS if re.search(pattern, name))
