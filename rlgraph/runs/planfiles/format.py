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
from rlgraph.ir.plan import (
    LARGEST,
    VERSION,
    AdmissionOrder,
    By,
    FusedTraining,
    Group,
    ModelHolding,
    Pool,
    Role,
    TailMove,
)
from rlgraph.runs.planfiles.document import JsonNode
from rlgraph.runs.planfiles.fields import (
    ChoiceField,
    FlagField,
    IntField,
    ListField,
    MapField,
    NullableField,
    NumberField,
    PathField,
    RecordField,
    RowsField,
    SectionField,
    TextField,
)

_RUN = "[0-9]{1,7}(-[0-9]{1,7})?"
_RANGES = f"({_RUN}(,{_RUN})*)?"


@dataclass(frozen=True)
class VersionField:
    """The version of the format. A file of another version is refused before anything else is read."""

    def read_value(self, node: JsonNode) -> int:
        return node.read_int()

    def json_schema(self) -> dict[str, Any]:
        return {"const": VERSION}


@dataclass(frozen=True)
class RangesField:
    """Numbers as `0-3,8,9`."""

    def read_value(self, node: JsonNode) -> tuple[int, ...]:
        text = node.read_text()
        if not re.fullmatch(_RANGES, text):
            message = f"{node.path_text} is {json.dumps(text):.60}, and has to be numbers and ranges"
            node.add_error("E0953", message, 'as in "0-3,8,9"')
            return ()
        ends = [run.partition("-") for run in (text.split(",") if text else [])]
        runs = [range(int(first), int(last or first) + 1) for first, _, last in ends]
        if not all(runs) or sum(map(len, runs)) > LARGEST:
            node.add_error("E0953", f"{node.path_text} has a range that does not count up, or is too large")
            return ()
        return tuple(number for run in runs for number in run)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{_RANGES}$"}


def format_ranges(numbers: Iterable[int]) -> str:
    """Return `0-3,6,5` for 0, 1, 2, 3, 6, 5: runs that count up are written by their ends."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


@dataclass(frozen=True)
class MeshField:
    """The size of a mesh along some axes."""

    def read_value(self, node: JsonNode) -> Mesh:
        sizes, size = {}, IntField(least=1)
        for name, value in node.object_entries():
            if name not in AXIS_NAMES:
                hint = (
                    did_you_mean(name[:60], AXIS_NAMES) or f"there are {', '.join(f'`{axis}`' for axis in AXIS_NAMES)}"
                )
                message = f"no axis of a mesh is called `{name:.60}`"
                node.document.add_error(value.path, "E0952", message, hint, field=True)
            sizes[name] = size.read_value(value)
        return Mesh(tuple(sizes.items()))

    def json_schema(self) -> dict[str, Any]:
        sizes = dict.fromkeys(AXIS_NAMES, IntField(least=1).json_schema())
        return {"type": "object", "properties": sizes, "additionalProperties": False}


POOL = RecordField(Pool, {"name": TextField(), "devices": IntField(), "first": IntField()}, {"cpus": IntField()})
GROUP = RecordField(
    Group,
    {
        "name": TextField(),
        "pool": TextField(),
        "engine": TextField(),
        "mesh": MeshField(),
        "devices": RangesField(),
        "models": ListField(TextField()),
    },
    {"code": ListField(TextField())},
)
ROLE = RecordField(Role, {"model": TextField(), "operation": TextField(), "group": TextField()})
HOLDING = RecordField(
    ModelHolding,
    {"model": TextField(), "group": TextField()},
    {
        option.name: FlagField()
        if isinstance(option.default, bool)
        else TextField()
        if isinstance(option.default, str)
        else NumberField(0.0, 1.0)
        if isinstance(option.default, float)
        else IntField(most=1 << 62)
        for option in fields(ModelHolding)
        if option.name not in ("model", "group")
    },
)
"""A missing option leaves the engine its default."""

TAIL = RecordField(TailMove, {"table": TextField(), "under": RowsField(), "on": IntField(least=1)})
ADMIT = RecordField(AdmissionOrder, {"table": TextField(), "by": ChoiceField(get_args(By))}, {"name": TextField()})
FUSED = RecordField(FusedTraining, {"models": ListField(TextField()), "turned": ListField(TextField())})

PROGRAM = RecordField(
    dict,
    {
        "name": TextField(),
        "source": PathField(),
        "sha256": TextField(),
        "folder": PathField(),
        "set": MapField(TextField()),
        "graph": ListField(TextField()),
    },
    {"graph_sha256": TextField()},
)
PLAN = RecordField(
    dict,
    {
        "pools": ListField(POOL),
        "groups": ListField(GROUP),
        "roles": ListField(ROLE),
        "owners": MapField(TextField()),
        "blocks": MapField(IntField(least=1)),
        "holdings": ListField(HOLDING),
    },
    {"free": ListField(TextField()), "tails": ListField(TAIL), "fused": ListField(FUSED), "admits": ListField(ADMIT)},
)
SECTIONS = {
    "cluster": SectionField({"text": "the cluster as `--cluster` reads it"}),
    "contract": SectionField(),
    "assumptions": SectionField(
        known={
            "prompt_tokens": TextField(),
            "response_tokens": NullableField(TextField()),
            **dict.fromkeys(("turns", "environment_seconds", "observation_tokens"), TextField()),
            "kept": NumberField(sys.float_info.min, 1.0),
            "kept_tokens": NumberField(),
            "constants": TextField(),
        }
    ),
    "predicted": SectionField(
        known={
            **dict.fromkeys(
                ("seconds", "gap", "tokens", "in_turn_seconds", "steady_seconds", "unfused_seconds", "alike_seconds"),
                NumberField(),
            ),
            "fused": MapField(
                RecordField(
                    dict,
                    {
                        **dict.fromkeys(("seconds", "bound_seconds", "in_turn_seconds"), NumberField()),
                        "micro_batches": MapField(IntField(least=1)),
                    },
                )
            ),
            "memory": MapField(
                RecordField(
                    dict,
                    {"bytes": NumberField(), "capacity": NumberField(1.0), "moment": TextField()},
                    {
                        "host": NumberField(),
                        "node": NumberField(),
                        "node_capacity": NumberField(),
                        "asleep": MapField(ListField(TextField())),
                    },
                )
            ),
            "rows": RecordField(dict, {"node": NumberField(), "kept": NumberField()}),
        }
    ),
}
DOCUMENT = RecordField(dict, {"rlgraph": VersionField(), "program": PROGRAM, "plan": PLAN}, SECTIONS)


def document_schema() -> dict[str, Any]:
    """Return the JSON Schema of the whole document, as in `plan.schema.json`."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"rlgraph plan file, version {VERSION}",
        "description": "A compiled program and the plan of where it runs; see docs/reference/plan-files.md.",
    }
    return head | DOCUMENT.json_schema()
