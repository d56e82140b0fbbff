"""Help with the options of a command in groups, for commands that have many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups."""

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **options: Any) -> None:
        """groups: the long names of the options by the title of their group; what no group names is in the last."""
        super().__init__(*arguments, **options)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        records = dict[str, tuple[str, str]]()
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                records[max(parameter.opts, key=len).removeprefix("--")] = record
        grouped = {title: [records.pop(name) for name in names] for title, names in self.groups.items()}
        grouped[[*self.groups][-1]] += records.values()
        for title, rows in grouped.items():
            with formatter.section(title):
                formatter.write_dl(rows)
