"""Has living processes write models as Hugging Face folders: after a failure the survivors, if they have all of a model
together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from rlgraph.backends.device_queues import DeviceQueues, device_set
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.ray import engine_opener
from rlgraph.backends.ray.failures import CallContext, process_name
from rlgraph.backends.ray.folder_parts import split_parameters
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.transfer_ends import WeightsReport
from rlgraph.backends.ray.transfers import BUCKET, join_link, ranks_of
from rlgraph.backends.ray.worker import Worker
from rlgraph.errors import NO_SPAN, Diagnostic, RunError, count_phrase
from rlgraph.ir.graph import Program
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ir.transfer import TensorBox, Topology
from rlgraph.passes.resharding.missing_boxes import missing_boxes
from rlgraph.passes.resharding.reshard import plan_resharding

_HOST: Address = (HOST, 0)


class ModelFolders:
    """Saves the models of a plan."""

    def __init__(self, program: Program, plan: Plan, processes: Processes, queues: DeviceQueues) -> None:
        """Is made after the models are loaded."""
        self.plan, self.processes, self.queues = plan, processes, queues
        self._tries = count()
        trained = [model.name for model in program.models if not model.frozen]
        self._replica_layouts = {
            name: self._layouts(name, plan.owner(name)) for name in trained if name in dict(plan.owners)
        }
        """For each model, the layouts of the ranks of one replica, in order; empty for a replica of one rank."""

    def _layouts(self, model: str, owner: Group) -> list[tuple[LocalTensor, ...]]:
        copy = tuple((owner.name, rank) for rank in owner.replica_ranks()[0])
        if len(copy) == 1:
            # Any surviving rank has all of the model.
            return []
        return [
            holding.layout
            for holding in self.processes.call_all(CallContext(copy, "opening"), Worker.report_weights, model)
        ]

    def save(self, model: str, owner: Group, folder: Path) -> None:
        """Write a model. Raises RunError, also where parts of the model are lost."""
        with self.queues.acquire_devices(device_set(owner), device_set(self.plan.group(HOST))):
            while True:
                gone = len(self.processes.gone)
                try:
                    return self._save(model, owner, folder)
                except RunError:
                    # The processes that ended meanwhile may not be the only ones that had their parts.
                    self.processes.allow_calls()
                    if len(self.processes.gone) == gone:
                        raise

    def _save(self, model: str, owner: Group, folder: Path) -> None:
        request = CallContext(ranks_of(owner), f"saving `{model}`")

        def is_enough(answers: Mapping[Address, WeightsReport]) -> bool:
            complete = any(not missing for missing in self._lacking(model, answers).values())
            return complete or bool(self._gone(model, owner))

        held = self.processes.call_idle(request.who, is_enough, request, Worker.report_weights, model)
        missing_by_changes = self._lacking(model, held)
        # The newest weights of which nothing is missing.
        changes = next((changes for changes, missing in missing_by_changes.items() if not missing), None)
        if changes is None:
            raise self._lost(
                model, owner, held, self._gone(model, owner) or next(iter(missing_by_changes.values()), [])
            )
        held = {
            who: holding
            for who, holding in held.items()
            if not holding.half_updated and holding.change_count == changes
        }
        if owner.mesh.rank_count == owner.mesh.axis_size("dp") and engine(owner.engine).saves:
            writer = next(iter(held))
            self.processes.call_all(CallContext((writer,), request.doing), Worker.save, model, str(folder))
        else:
            writer = self._writer(held)
            self._save_parts(model, held, writer, folder)
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
            message = f"{process_name(writer)} has written `{model}`, and it is not here"
            hint = "all machines need the folder on a file system that they share"
            raise RunError(Diagnostic("E0813", message, NO_SPAN, hint))

    def _lacking(self, model: str, held: Mapping[Address, WeightsReport]) -> dict[int, list[TensorBox]]:
        """For each count of changes, newest first, return what is missing of a model among the ranks with that
        count."""
        wanted = self._replica_layouts.get(model) or [holding.layout for holding in held.values()]
        intact = [holding for holding in held.values() if not holding.half_updated]
        return {
            changes: missing_boxes(wanted, [holding.layout for holding in intact if holding.change_count == changes])
            for changes in sorted({holding.change_count for holding in intact}, reverse=True)
        }

    def _gone(self, model: str, owner: Group) -> list[TensorBox]:
        """Return what is missing of a model among the processes that may still answer."""
        layouts = self._replica_layouts.get(model) or []
        living = [
            layout
            for copy in owner.replica_ranks()
            for rank, layout in zip(copy, layouts, strict=bool(layouts))
            if (owner.name, rank) not in self.processes.gone
        ]
        return missing_boxes(layouts, living)

    def _lost(
        self, model: str, owner: Group, held: Mapping[Address, WeightsReport], parts: Sequence[TensorBox]
    ) -> RunError:
        """Return the error for a model that cannot be saved, which names the processes that had its missing parts."""
        reasons = []
        for who in ranks_of(owner):
            if who in self.processes.gone:
                reasons.append(f"{process_name(who)} is gone")
            elif who not in held:
                reasons.append(f"{process_name(who)} does not answer")
            elif held[who].half_updated:
                reasons.append(f"{process_name(who)} was in the midst of an update")
        more = f" and {count_phrase(len(parts) - 1, 'more part')}" if len(parts) > 1 else ""
        missing = f"of {_shown(parts[0])}{more}" if parts else f"of `{model}`"
        hint = "more data-parallel copies, or `--save-every`, keep a model from being lost with a process"
        message = f"{', '.join(reasons) or 'copies have taken different updates'}, and nobody else has all {missing}"
        return RunError(Diagnostic("E0813", message, NO_SPAN, hint))

    def _writer(self, held: Mapping[Address, WeightsReport]) -> Address:
        """Return the host, which runs where the folder is, or else a process on its machine, or any process."""
        request = CallContext((_HOST,), "saving")
        if self.processes.call_idle((_HOST,), bool, request, Worker.wait_until_idle):
            return _HOST
        here = engine_opener.node_id()
        return min(held, key=lambda who: held[who].machine_id != here)

    def _save_parts(self, model: str, held: Mapping[Address, WeightsReport], writer: Address, folder: Path) -> None:
        """Save a model part by part: no process ever holds all of a split model."""
        doing = f"saving `{model}`"
        everybody = CallContext(tuple(dict.fromkeys((*held, writer))), doing)
        alone = CallContext((writer,), doing)
        writer_place, dtype = everybody.who.index(writer), next(iter(held.values())).dtype
        self.processes.call_all(alone, Worker.start_model_folder, model, str(folder))
        link, call = f"{model} > {folder} {next(self._tries)}", self.processes.call
        join_link(self.processes, link, everybody)
        source = {place: holding.layout for place, holding in enumerate(held.values())}
        topology = Topology.one_per_device(range(len(everybody.who)))
        for number, part in enumerate(split_parameters([*held.values()], dtype.itemsize, BUCKET)):
            transfer = plan_resharding(
                source, {writer_place: part}, itemsize=dtype.itemsize, topology=topology, bucket=BUCKET
            )
            name, places_parts = f"{link} {number}", transfer.split_by_place(range(len(everybody.who)))
            sides = [(model if who in held else None, part if who == writer else None) for who in everybody.who]
            preparing = [
                call(who, Worker.prepare_weight_transfer, link, name, places_parts[place], *sides[place], dtype)
                for place, who in enumerate(everybody.who)
            ]
            self.processes.get(preparing, everybody)
            going = [
                call(who, Worker.write_folder_file, name, part, dtype, sent)
                if who == writer
                else call(who, Worker.exchange_weights, name, model, None)
                for who, (sent, _) in zip(everybody.who, sides, strict=True)
            ]
            self.processes.get(going, everybody)
        self.processes.call_all(alone, Worker.close_model_folder)


def _shown(part: TensorBox) -> str:
    """Return a part of a tensor in messages."""
    name, box = part
    return f"{name}[{', '.join(f'{low}:{high}' for low, high in box)}]"
