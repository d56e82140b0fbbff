"""Models are written as Hugging Face folders, by the processes that are there: after a failure by those that are left,
if they have all of a model together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.ray import shards
from rlgraph.backends.ray.failures import Request, shown
from rlgraph.backends.ray.folder import parts
from rlgraph.backends.ray.links import Holding
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.ray.transfers import BUCKET, meet, ranks
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.turns import Queues, seats
from rlgraph.errors import NO_SPAN, Diagnostic, RunError, counted
from rlgraph.ir.graph import Program
from rlgraph.ir.layout import Local
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ir.transfer import TensorBox, Topology
from rlgraph.passes.resharding.missing import lacking
from rlgraph.passes.resharding.reshard import reshard

_HOST: Address = (HOST, 0)


class Folders:
    """Of the models of a plan."""

    def __init__(self, program: Program, plan: Plan, processes: Processes, queues: Queues) -> None:
        """After the models are loaded."""
        self.plan, self.processes, self.queues = plan, processes, queues
        self._tries = count()
        trained = [model.name for model in program.models if not model.frozen]
        self._whole = {name: self._layouts(name, plan.owner(name)) for name in trained if name in dict(plan.owners)}
        """Of each model what the ranks of a copy that is split have, one after the other."""

    def _layouts(self, model: str, owner: Group) -> list[tuple[Local, ...]]:
        copy = tuple((owner.name, rank) for rank in owner.copies()[0])
        if len(copy) == 1:
            # What one that is left has is all of it.
            return []
        return [each.layout for each in self.processes.ask(Request(copy, "opening"), Worker.holding, model)]

    def save(self, model: str, owner: Group, folder: Path) -> None:
        """Writes a model. Raises RunError, also where parts of it are gone."""
        with self.queues.turn(seats(owner), seats(self.plan.group(HOST))):
            while True:
                gone = len(self.processes.gone)
                try:
                    return self._save(model, owner, folder)
                except RunError:
                    # Who ended meanwhile need not be one that has what nobody else has.
                    self.processes.go_on()
                    if len(self.processes.gone) == gone:
                        raise

    def _save(self, model: str, owner: Group, folder: Path) -> None:
        request = Request(ranks(owner), f"saving `{model}`")

        def enough(found: Mapping[Address, Holding]) -> bool:
            whole = any(not lack for lack in self._lacking(model, found).values())
            return whole or bool(self._gone(model, owner))

        held = self.processes.free(request.who, enough, request, Worker.holding, model)
        lacks = self._lacking(model, held)
        # The newest weights of which all is there.
        changes = next((changes for changes, lack in lacks.items() if not lack), None)
        if changes is None:
            raise self._lost(model, owner, held, self._gone(model, owner) or next(iter(lacks.values()), []))
        held = {who: each for who, each in held.items() if not each.torn and each.changes == changes}
        if owner.mesh.size == owner.mesh.length("dp") and engine(owner.engine).saves:
            writer = next(iter(held))
            self.processes.ask(Request((writer,), request.doing), Worker.save, model, str(folder))
        else:
            writer = self._writer(held)
            self._save_parts(model, held, writer, folder)
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
            message = f"{shown(writer)} has written `{model}`, and it is not here"
            hint = "all machines need the folder on a file system that they share"
            raise RunError(Diagnostic("E0813", message, NO_SPAN, hint))

    def _lacking(self, model: str, held: Mapping[Address, Holding]) -> dict[int, list[TensorBox]]:
        """For each number of changes, the newest first, what of a model nobody has who has got so many."""
        wanted = self._whole.get(model) or [each.layout for each in held.values()]
        whole = [each for each in held.values() if not each.torn]
        return {
            changes: lacking(wanted, [each.layout for each in whole if each.changes == changes])
            for changes in sorted({each.changes for each in whole}, reverse=True)
        }

    def _gone(self, model: str, owner: Group) -> list[TensorBox]:
        """What of a model nobody has who may answer yet."""
        known = self._whole.get(model) or []
        left = [
            layout
            for copy in owner.copies()
            for rank, layout in zip(copy, known, strict=bool(known))
            if (owner.name, rank) not in self.processes.gone
        ]
        return lacking(known, left)

    def _lost(self, model: str, owner: Group, held: Mapping[Address, Holding], parts: Sequence[TensorBox]) -> RunError:
        """It cannot be saved: who had what nobody else has."""
        why = []
        for who in ranks(owner):
            if who in self.processes.gone:
                why.append(f"{shown(who)} is gone")
            elif who not in held:
                why.append(f"{shown(who)} does not answer")
            elif held[who].torn:
                why.append(f"{shown(who)} was in the midst of an update")
        more = f" and {counted(len(parts) - 1, 'more part')}" if len(parts) > 1 else ""
        said = f"of {_shown(parts[0])}{more}" if parts else f"of `{model}`"
        hint = "more data-parallel copies, or `--save-every`, keep a model from being lost with a process"
        message = f"{', '.join(why) or 'copies have taken different updates'}, and nobody else has all {said}"
        return RunError(Diagnostic("E0813", message, NO_SPAN, hint))

    def _writer(self, held: Mapping[Address, Holding]) -> Address:
        """The host, which runs where the folder is; without it somebody who does, or anybody."""
        request = Request((_HOST,), "saving")
        if self.processes.free((_HOST,), bool, request, Worker.ready):
            return _HOST
        here = shards.node()
        return min(held, key=lambda who: held[who].node != here)

    def _save_parts(self, model: str, held: Mapping[Address, Holding], writer: Address, folder: Path) -> None:
        """Part by part: no process ever holds all of a model that is split."""
        doing = f"saving `{model}`"
        everybody = Request(tuple(dict.fromkeys((*held, writer))), doing)
        alone = Request((writer,), doing)
        at, dtype = everybody.who.index(writer), next(iter(held.values())).dtype
        self.processes.ask(alone, Worker.begin_folder, model, str(folder))
        link, call = f"{model} > {folder} {next(self._tries)}", self.processes.call
        meet(self.processes, link, everybody)
        source = {place: each.layout for place, each in enumerate(held.values())}
        topology = Topology.separate(range(len(everybody.who)))
        for number, part in enumerate(parts([*held.values()], dtype.itemsize, BUCKET)):
            transfer = reshard(source, {at: part}, itemsize=dtype.itemsize, topology=topology, bucket=BUCKET)
            name, own = f"{link} {number}", transfer.parts(range(len(everybody.who)))
            ends = [(model if who in held else None, part if who == writer else None) for who in everybody.who]
            preparing = [
                call(who, Worker.prepare, link, name, own[place], *ends[place], dtype)
                for place, who in enumerate(everybody.who)
            ]
            self.processes.get(preparing, everybody)
            going = [
                call(who, Worker.write_part, name, part, dtype, sent)
                if who == writer
                else call(who, Worker.exchange, name, model, None)
                for who, (sent, _) in zip(everybody.who, ends, strict=True)
            ]
            self.processes.get(going, everybody)
        self.processes.ask(alone, Worker.end_folder)


def _shown(part: TensorBox) -> str:
    name, box = part
    return f"{name}[{', '.join(f'{low}:{high}' for low, high in box)}]"
