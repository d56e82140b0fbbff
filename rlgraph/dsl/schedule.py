"""Checks schedules: an `.rls` file, or the block `schedule:` of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rlgraph.dsl import constants, tree
from rlgraph.dsl.admitting import check_admit
from rlgraph.dsl.fusing import check_fuse
from rlgraph.dsl.offpolicy import unweighted_logprob_reads
from rlgraph.dsl.placing import PlaceChecker
from rlgraph.dsl.scope import Meaning, StatementError
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.dsl.tails import check_tail
from rlgraph.errors import Diagnostic, ProgramError, Related, Source, Span, did_you_mean
from rlgraph.ir.graph import Constant, Program
from rlgraph.ir.plan import HOST, LARGEST
from rlgraph.ir.schedule import AdmitLine, FuseLine, PoolLine, RefreshLine, Schedule, SendLine, StreamLine, TailLine
from rlgraph.ir.types import Table, is_model
from rlgraph.ops import NODES


def check_schedule(
    file: tree.File, program: Program, source: Source, scope: Mapping[str, Meaning] | None = None
) -> Schedule:
    """Return what a file says about where a program runs: nothing, if it holds no schedule.

    `scope` holds the program's params. Raises ProgramError with everything that is wrong.
    """
    checker = _Checker(program, scope or {})
    schedule = checker.check_file(file, source)
    if checker.diagnostics:
        raise ProgramError(sorted(checker.diagnostics, key=_line_and_column))
    return schedule


def _line_and_column(diagnostic: Diagnostic) -> tuple[int, int]:
    return diagnostic.span.line, diagnostic.span.column


class _Checker(PlaceChecker):
    """Checks the lines of a schedule against the program."""

    def __init__(self, program: Program, scope: Mapping[str, Meaning]) -> None:
        super().__init__(program, scope)
        self.seen: dict[tuple[str, ...], Span] = {}
        """Where a line says something that no other line may say again."""
        self.fused: list[FuseLine] = []

    def check_file(self, file: tree.File, source: Source) -> Schedule:
        schedules = [item for item in file.declarations if isinstance(item, tree.Schedule)]
        declarations = [item for item in file.declarations if not isinstance(item, tree.Schedule)]
        if not schedules:
            if not declarations or source.path.endswith(".rls"):
                top = Span(source, 1, 1, 1, max(2, len(source.line_text(1)) + 1))
                self.report("E0901", "there is no schedule here", top, f"begin it with `schedule {self.program.name}`")
            return Schedule()
        for extra in schedules[1:]:
            self.report(
                "E0901", "there are two schedules", extra.span, related=(Related(schedules[0].span, "the first one"),)
            )
        if schedules[0].name:
            self.check_head(schedules[0], declarations)
        return self.check_schedule_lines(schedules[0])

    def check_head(self, item: tree.Schedule, others: Sequence[tree.Decl]) -> None:
        """Check the head of an `.rls` file, which holds nothing else."""
        if item.name != self.program.name:
            self.report(
                "E0901",
                f"this is a schedule for `{item.name}`, and the program is `{self.program.name}`",
                item.span,
                f"`schedule {self.program.name}`",
            )
        for declaration in others:
            self.report(
                "E0901",
                "only pools, places, streams, admits, tails, fuses, sends and refreshes can stand in a schedule",
                declaration.span,
                "move this line into the program",
            )

    def check_schedule_lines(self, item: tree.Schedule) -> Schedule:
        checks: dict[type, tuple[str, Callable[[Any], Any]]] = {
            tree.Place: ("placements", lambda line: self.check_place(line, works[id(line)])),
            tree.Stream: ("streams", self.check_stream),
            tree.Admit: ("admits", self.check_admit_line),
            tree.Tail: ("tails", partial(self.check_tail_line, lines=item.body)),
            tree.Fuse: ("fuses", self.check_fuse_line),
            tree.Send: ("sends", self.check_send),
            tree.Refresh: ("refreshes", self.check_refresh),
        }
        for line in item.body:
            if isinstance(line, tree.Pool):
                try:
                    self.check_pool(line)
                except StatementError:
                    self.invalid_pools.add(line.name)
        works = {id(line): self.placed_work(line) for line in item.body if isinstance(line, tree.Place)}
        lines: dict[str, list[Any]] = {kind: [] for kind, _ in checks.values()}
        # Where there are too many errors to report, those about places are reported.
        for line in sorted(item.body, key=lambda line: not isinstance(line, tree.Place)):
            if type(line) in checks:
                kind, check = checks[type(line)]
                with suppress(StatementError):
                    lines[kind].append(check(line))
        return Schedule(
            pools=tuple(self.pools.values()), span=item.span, **{kind: tuple(made) for kind, made in lines.items()}
        )

    # Pools

    def check_pool(self, line: tree.Pool) -> None:
        if line.name in self.pools or line.name in self.invalid_pools:
            first = self.pools.get(line.name)
            related = (Related(first.span, "the first one"),) if first else ()
            raise self.statement_error("E0902", f"there are two pools `{line.name}`", line.name_span, related=related)
        if line.name == HOST and line.unit != "cpus":
            raise self.statement_error(
                "E0902",
                f"`{HOST}` reads data, calls functions and does the mathematics between models: it has no devices",
                line.name_span,
                f"choose another name, or say how many processes it has: `pool {HOST} = 4 cpus`",
            )
        count = constants.evaluate_constant(self, line.count, self.scope)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise self.statement_error(
                "E0902",
                f"a pool has a whole number of {line.unit}, at least 1",
                line.count.span,
                f"`pool {line.name} = 8 {line.unit}`",
            )
        if count > LARGEST:
            message = f"`{line.name}` has more than {LARGEST:,} {line.unit}"
            raise self.statement_error("E0902", message, line.count.span, f"`pool {line.name} = 8 {line.unit}`")
        counts = (0, count) if line.unit == "cpus" else (count, 0)
        self.pools[line.name] = PoolLine(line.name, *counts, line.span)

    # Tables

    def check_table_line(self, line: tree.TableLine, keyword: str, happens: str) -> tuple[str, Mapping[str, Constant]]:
        """Return the table that a line is about, and what its options say."""
        tables = {
            name.split(".")[0]: None
            for phase in self.program.phases
            for name, kind in phase.graph.value_types().items()
            if isinstance(kind, Table) and kind.token is not None
        }
        name = line.table.id
        if name not in tables:
            hint = did_you_mean(name, tables) or f"it makes {', '.join(f'`{table}`' for table in tables) or 'none'}"
            raise self.statement_error("E0909", f"the program makes no table `{name}`", line.table.span, hint)
        if (keyword, name) in self.seen:
            first = Related(self.seen[keyword, name], "the first time")
            raise self.statement_error(
                "E0905", f"`{name}` {happens} twice", line.table.span, "keep one of them", (first,)
            )
        values = constants.evaluate_options(self, STATEMENTS[keyword], line.options, line.span, self.scope)
        self.seen[keyword, name] = line.table.span
        return name, values

    def check_stream(self, line: tree.Stream) -> StreamLine:
        name, values = self.check_table_line(line, "stream", "is streamed")
        block = values["block"]
        assert block is None or isinstance(block, int)
        return StreamLine(name, block, values["deal"] == "free", line.span)

    def check_admit_line(self, line: tree.Admit) -> AdmitLine:
        name, values = self.check_table_line(line, "admit", "is admitted")
        return check_admit(self, self.program, line, name, str(values["by"]))

    def check_tail_line(self, line: tree.Tail, lines: Sequence[tree.ScheduleLine]) -> TailLine:
        name, values = self.check_table_line(line, "tail", "has a tail")
        return check_tail(self, self.program, line, name, values, lines)

    def check_fuse_line(self, line: tree.Fuse) -> FuseLine:
        fuse = check_fuse(self, self.program, line, [self.trained_model(expr) for expr in line.work], self.fused)
        self.fused.append(fuse)
        return fuse

    def trained_model(self, expr: tree.Expr) -> str:
        """Return the model whose training a line names."""
        base = expr.base if isinstance(expr, tree.Attribute) else expr
        assert isinstance(base, tree.Name)
        self.operations_of_model(base)
        if not isinstance(expr, tree.Attribute):
            message = f"trainings share a pipeline, and `{base.id}` is a model with all its work"
            raise self.statement_error("E0972", message, expr.span, f"`fuse {base.id}.train, ...`")
        if not NODES[self.check_operation(expr, base.id)].trains:
            message = f"trainings share a pipeline, and `{base.id}.{expr.name}` is none"
            raise self.statement_error("E0972", message, expr.name_span, f"`{base.id}.train`")
        return base.id

    # Weights

    def check_weights_line(
        self, line: tree.WeightsLine, keyword: str, happens: str
    ) -> tuple[str, str, Mapping[str, Constant]]:
        """Return the model and the pool that a line is about, and what its options say."""
        self.operations_of_model(line.model)
        model, pool = line.model.id, self.pool_named(line.pool).name
        if (keyword, model, pool) in self.seen:
            first = Related(self.seen[keyword, model, pool], "the first time")
            message = f"two lines say how `{model}` is {happens} `{pool}`"
            raise self.statement_error("E0905", message, line.span, "keep one of them", (first,))
        self.seen[keyword, model, pool] = line.span
        return model, pool, constants.evaluate_options(self, STATEMENTS[keyword], line.options, line.span, self.scope)

    def check_send(self, line: tree.Send) -> SendLine:
        model, pool, values = self.check_weights_line(line, "send", "sent to")
        return SendLine(model, pool, delta=bool(values["delta"]), span=line.span)

    def check_refresh(self, line: tree.Refresh) -> RefreshLine:
        model, pool, values = self.check_weights_line(line, "refresh", "refreshed on")
        by = str(values["by"])
        where = next((option.value.span for option in line.options if option.name == "by"), line.span)
        if by != "drain" and not self.may_mix_versions(model):
            raise self.statement_error(
                "E0917",
                f"`by={by}` gives unfinished rows new weights, and each row of `{model}` is of one version",
                where,
                "the program grants it: `step async(staleness=2, span=token)`",
            )
        if by == "keep":
            self.check_logprobs(model, where)
        return RefreshLine(model, pool, by, values["each"] == "replica", line.span)

    def check_logprobs(self, model: str, where: Span) -> None:
        """Check that losses only weight by the log-probabilities of a model's tokens: with `by=keep` no weights give
        them."""
        for phase in self.program.phases:
            for span in unweighted_logprob_reads(phase, model):
                raise self.statement_error(
                    "E0919",
                    f"with `by=keep` no weights give `{model}`'s log-probabilities of its rows, and a loss takes them "
                    "for those of some",
                    where,
                    "`by=reread`, or use them in `exp(prox - rollout.logprobs)` alone, where `prox` are the trainer's",
                    (Related(span, "they are used here"),),
                )

    def may_mix_versions(self, model: str) -> bool:
        """Return whether rows that a model samples may be of several versions."""
        for phase in self.program.phases:
            types = phase.graph.value_types()
            for node in phase.graph.walk():
                kind = types[node.inputs[0]] if node.inputs else None
                if kind is not None and is_model(kind) and kind.name == model and node.attr("span", "row") != "row":
                    return True
        return False
