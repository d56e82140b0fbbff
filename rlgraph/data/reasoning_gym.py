"""`reasoning_gym("spell_backward", size=1000, batch=64)`: the tasks of reasoning_gym, made as they are read.

`start=1000` takes the rows after the first 1000, for held-out rows. A second seed is no held-out set: many tasks
make row i of seed s from the number s + i, so that neighbouring seeds share almost all of their rows. All
other options are the task's own.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rlgraph.columns import Column
from rlgraph.data.base import SHARED_OPTIONS, DataSource, Row, make_source
from rlgraph.errors import Diagnostic, ProgramError, RunError, did_you_mean
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec, int_option, require_package, single_text_argument

BAD_TASK = "E0713"
COLUMNS = {"prompt": "text", "answer": "text", "metadata": "object", "task": "text", "index": "whole"}
"""What rows hold: all tasks have the same columns."""
OPTIONS = (*SHARED_OPTIONS, "size", "seed", "start")


@dataclasses.dataclass(frozen=True, slots=True)
class GymRows:
    """The rows of a task from `start` on."""

    task: str
    dataset: Any = dataclasses.field(repr=False)
    start: int
    size: int
    spec: CallSpec

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Row:
        number = self.start + index
        try:
            entry = self.dataset[number]
        except Exception as error:  # the tasks raise what they like
            why = f"{type(error).__name__}: {error}"
            message = f"reasoning_gym cannot make row {number} of '{self.task}': {why}"
            raise RunError(Diagnostic(BAD_TASK, message, self.spec.span)) from None
        row = {"prompt": entry["question"], "answer": entry["answer"], "metadata": entry["metadata"]}
        return {**row, "task": self.task, "index": number}


def check_arguments(spec: CallSpec) -> None:
    """Raise an error for wrong arguments; the task's own options are checked when it is opened."""
    single_text_argument(spec, "the name of a task", 'reasoning_gym("spell_backward", size=1000, batch=64)')
    int_option(spec, "size", 500)
    int_option(spec, "seed", 0, least=0)
    int_option(spec, "start", 0, least=0)


def open_source(spec: CallSpec, folders: SearchFolders) -> DataSource:
    """Create the data set of the task."""
    del folders
    require_package("reasoning_gym", spec.span)
    import reasoning_gym  # type: ignore[import-untyped]

    task = spec.args[0]
    tasks = reasoning_gym.factory.DATASETS
    if task not in tasks:
        hint = did_you_mean(task, tasks) or "see the list at https://github.com/open-thought/reasoning-gym"
        raise ProgramError(Diagnostic(BAD_TASK, f"reasoning_gym has no task '{task}'", spec.argument_span(0), hint))
    config = _config(spec, tasks[task][1])
    start, size = int_option(spec, "start", 0, least=0) or 0, int_option(spec, "size", 500) or 500
    options = {**config, "seed": spec.options.get("seed", 0), "size": start + size}
    try:
        dataset = reasoning_gym.create_dataset(task, **options)
    except Exception as error:  # asserts of its own, type errors of numbers that are texts
        message = f"reasoning_gym does not accept these options for '{task}': {error or type(error).__name__}"
        raise ProgramError(Diagnostic(BAD_TASK, message, spec.span)) from None
    return make_source(spec, GymRows(task, dataset, start, size, spec), f"'{task}'", _columns())


def columns(spec: CallSpec, folders: SearchFolders) -> dict[str, Column] | None:
    """Return the columns, which all tasks share."""
    del spec, folders
    return _columns()


def _columns() -> dict[str, Column]:
    return {name: Column({kind: ""}) for name, kind in COLUMNS.items()}


def _config(spec: CallSpec, config_class: type[Any]) -> dict[str, Any]:
    """Return the options that are the task's own; raise an error for an unknown one."""
    task_options = [field.name for field in dataclasses.fields(config_class) if field.name not in ("seed", "size")]
    for name in spec.options:
        if name not in OPTIONS and name not in task_options:
            message = f"the task '{spec.args[0]}' has no option '{name}'"
            hint = did_you_mean(name, (*OPTIONS, *task_options)) or f"its options are: {', '.join(task_options)}"
            raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span(name), hint))
    return {name: value for name, value in spec.options.items() if name not in OPTIONS}


def files(spec: CallSpec, folders: SearchFolders) -> list[Path]:
    """Return no files: none is read."""
    del spec, folders
    return []
