"""The fields of a plan file. `plan.schema.json` says the same for other programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, get_args

from rlgraph.errors import did_you_mean
from rlgraph.ir.mesh import AXIS_NAMES, Mesh
from rlgraph.ir.plan import LARGEST, VERSION, Admission, By, FusedTraining, Group, Holding, Pool, Role, Tail
from rlgraph.runs.planfiles.document import JsonNode
from rlgraph.runs.planfiles.fields import (
    Entries,
    FilePath,
    Flag,
    Items,
    Nullable,
    Number,
    OneOf,
    Record,
    Rows,
    Section,
    Text,
    WholeNumber,
)

_RUN = "[0-9]{1,7}(-[0-9]{1,7})?"
_RANGES = f"({_RUN}(,{_RUN})*)?"


@dataclass(frozen=True)
class Version:
    """The version of the format. A file of another version is refused before anything else is read."""

    def read(self, node: JsonNode) -> int:
        return node.number()

    def schema(self) -> dict[str, Any]:
        return {"const": VERSION}


@dataclass(frozen=True)
class Ranges:
    """Numbers as `0-3,8,9`."""

    def read(self, node: JsonNode) -> tuple[int, ...]:
        text = node.text()
        if not re.fullmatch(_RANGES, text):
            message = f"{node.shown} is {json.dumps(text):.60}, and has to be numbers and ranges"
            node.say("E0953", message, 'as in "0-3,8,9"')
            return ()
        ends = [run.partition("-") for run in (text.split(",") if text else [])]
        runs = [range(int(first), int(last or first) + 1) for first, _, last in ends]
        if not all(runs) or sum(map(len, runs)) > LARGEST:
            node.say("E0953", f"{node.shown} has a range that does not count up, or is too large")
            return ()
        return tuple(number for run in runs for number in run)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{_RANGES}$"}


def ranges(numbers: Iterable[int]) -> str:
    """Return `0-3,6,5` for 0, 1, 2, 3, 6, 5: runs that count up are written by their ends."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


@dataclass(frozen=True)
class MeshSizes:
    """The size of a mesh along some axes."""

    def read(self, node: JsonNode) -> Mesh:
        sizes, size = {}, WholeNumber(least=1)
        for name, value in node.entries():
            if name not in AXIS_NAMES:
                hint = (
                    did_you_mean(name[:60], AXIS_NAMES) or f"there are {', '.join(f'`{axis}`' for axis in AXIS_NAMES)}"
                )
                message = f"no axis of a mesh is called `{name:.60}`"
                node.document.add_error(value.path, "E0952", message, hint, field=True)
            sizes[name] = size.read(value)
        return Mesh(tuple(sizes.items()))

    def schema(self) -> dict[str, Any]:
        sizes = dict.fromkeys(AXIS_NAMES, WholeNumber(least=1).schema())
        return {"type": "object", "properties": sizes, "additionalProperties": False}


POOL = Record(Pool, {"name": Text(), "devices": WholeNumber(), "first": WholeNumber()}, {"cpus": WholeNumber()})
GROUP = Record(
    Group,
    {
        "name": Text(),
        "pool": Text(),
        "engine": Text(),
        "mesh": MeshSizes(),
        "devices": Ranges(),
        "models": Items(Text()),
    },
    {"code": Items(Text())},
)
ROLE = Record(Role, {"model": Text(), "operation": Text(), "group": Text()})
HOLDING = Record(
    Holding,
    {"model": Text(), "group": Text()},
    {
        option.name: Flag()
        if isinstance(option.default, bool)
        else Text()
        if isinstance(option.default, str)
        else WholeNumber(most=1 << 62)
        for option in fields(Holding)
        if option.name not in ("model", "group")
    },
)
"""A missing option leaves the engine its default."""

TAIL = Record(Tail, {"table": Text(), "under": Rows(), "on": WholeNumber(least=1)})
ADMIT = Record(Admission, {"table": Text(), "by": OneOf(get_args(By))}, {"name": Text()})
FUSED = Record(FusedTraining, {"models": Items(Text()), "turned": Items(Text())})

PROGRAM = Record(
    dict,
    {
        "name": Text(),
        "source": FilePath(),
        "sha256": Text(),
        "folder": FilePath(),
        "set": Entries(Text()),
        "graph": Items(Text()),
    },
    {"graph_sha256": Text()},
)
PLAN = Record(
    dict,
    {
        "pools": Items(POOL),
        "groups": Items(GROUP),
        "roles": Items(ROLE),
        "owners": Entries(Text()),
        "blocks": Entries(WholeNumber(least=1)),
        "holdings": Items(HOLDING),
    },
    {"free": Items(Text()), "tails": Items(TAIL), "fused": Items(FUSED), "admits": Items(ADMIT)},
)
SECTIONS = {
    "cluster": Section({"text": "the cluster as `--cluster` reads it"}),
    "assumptions": Section(
        known={
            "prompt_tokens": Text(),
            "response_tokens": Nullable(Text()),
            "kept": Number(sys.float_info.min, 1.0),
            "constants": Text(),
        }
    ),
    "predicted": Section(
        known={
            **dict.fromkeys(
                ("seconds", "gap", "tokens", "in_turn_seconds", "steady_seconds", "unfused_seconds", "alike_seconds"),
                Number(),
            ),
            "fused": Entries(
                Record(
                    dict,
                    {
                        **dict.fromkeys(("seconds", "bound_seconds", "in_turn_seconds"), Number()),
                        "micro_batches": Entries(WholeNumber(least=1)),
                    },
                )
            ),
            "memory": Entries(
                Record(
                    dict,
                    {"bytes": Number(), "capacity": Number(1.0), "moment": Text()},
                    {
                        "host": Number(),
                        "node": Number(),
                        "node_capacity": Number(),
                        "asleep": Entries(Items(Text())),
                    },
                )
            ),
        }
    ),
}
DOCUMENT = Record(dict, {"rlgraph": Version(), "program": PROGRAM, "plan": PLAN}, SECTIONS)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the whole document, as in `plan.schema.json`."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"rlgraph plan file, version {VERSION}",
        "description": "A compiled program and the plan of where it runs; see docs/reference/plan-files.md.",
    }
    return head | DOCUMENT.schema()
