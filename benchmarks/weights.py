"""New weights from a trainer to its generators: a random Qwen2 of 66 million parameters (float32) goes from Megatron
with TP2 to two vLLM engines with TP1, each process a Ray actor on this machine.

    planned       rlgraph: the transfer that the two layouts make, over gloo, written into vLLM's live parameters
    object store  the same plan, but what goes from one process to another is packed, put into Ray's object store and
                  unpacked
    gather+load   each parameter gathered in full on the trainer's ranks, sent whole to each generator over gloo, and
                  loaded by the vLLM model's `load_weights`, parameter by parameter
    gather+reload the same with vLLM's `reload_weights`

    python benchmarks/weights.py
    python benchmarks/weights.py --hidden 256 --layers 4 --rounds 3

The ways take turns; medians are shown. `MB` are those of messages between processes. `peak` is the memory that the
process which needed most took beside its weights: by how much it grew, and the buffers that it keeps. `in store` is
what the object store had. After each way the generators' weights are compared with the trainer's, which change before
it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "peers")]

import clock
import ray
import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.process_groups import RendezvousStore, join_process_group, open_store
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import WordTokenizer
from rlgraph.backends.exchange.exchange import TransferEndpoint
from rlgraph.backends.exchange.mailbox import GlooLink, MessageKind, WholeMessage
from rlgraph.backends.ray.transfer_ends import Links
from rlgraph.ir.layout import LocalTensor, TensorPiece
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.transfer import Topology, Transfer
from rlgraph.passes.resharding.reshard import plan_resharding

TRAINERS, GENERATORS = 2, 2
PLACES = TRAINERS + GENERATORS
BUCKET = 256 << 20
WAYS = ("planned", "object store", "gather+load", "gather+reload")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ffn", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", default="", help="append the results to this file")
    return parser.parse_args()


class End:
    """A process at one end: a rank of the trainer (places 0 and 1), or a generator."""

    def __init__(self, place: int, spec: ModelSpec) -> None:
        torch.set_num_threads(1)
        self.place, self.spec, self.links = place, spec, Links(120)
        self.meetings: list[RendezvousStore] = []
        self.trains = place < TRAINERS

    def address(self) -> str:
        self.meetings.append(open_store("127.0.0.1"))
        return self.meetings[-1].address

    def open(self, address: str) -> tuple[LocalTensor, ...]:
        """Starts the engine; what it holds."""
        if self.trains:
            from rlgraph.backends.engines.megatron.engine import MegatronEngine

            join_process_group(self.place, TRAINERS, address, 120)
            self.engine: Any = MegatronEngine.open(self.spec, make_mesh(tp=TRAINERS))
        else:
            from rlgraph.backends.engines.vllm.engine import VllmEngine

            self.engine = VllmEngine.open(self.spec)
        return tuple(self.engine.layout())

    def prepare(self, address: str, transfer: Transfer, layouts: list[tuple[LocalTensor, ...]]) -> None:
        self.layouts = layouts
        ends: dict[str, Any] = {"source" if self.trains else "destination": layouts[self.place]}
        self.links.join_link("all", self.place, PLACES, address)
        self.links.prepare_exchange(
            "all", "planned", transfer, ends.get("source", ()), ends.get("destination", ()), torch.float32
        )
        self.parcels = Parcels(self.place)
        self.stored = TransferEndpoint(transfer, self.parcels, **ends)

    # What the trainer's weights are

    def change(self) -> None:
        """New weights, the same for parameters of which both ranks have all."""
        for tensor in self.engine.tensors().values():
            tensor.data.mul_(1.01)

    def sums(self) -> dict[str, float]:
        """Of each parameter's part that is here the sum, in float64."""
        found: dict[str, float] = {}
        for one, tensor in self.parts():
            for piece in one.pieces:
                inside = tuple(slice(at, at + b - a) for at, (a, b) in zip(piece.at, piece.box, strict=True))
                found[piece.name] = found.get(piece.name, 0.0) + float(tensor[inside].double().sum())
        return found

    def parts(self) -> Iterator[tuple[LocalTensor, Tensor]]:
        """Each tensor with what it holds."""
        tensors = self.engine.tensors()
        return ((one, tensors[one.name].detach()) for one in single(self.layouts[self.place]))

    # The ways

    def planned(self) -> tuple[float, int, int]:
        with Grown() as grown:
            tensors = self.engine.tensors()
            moved = self.links.run_exchange("planned", *((tensors, {}) if self.trains else ({}, tensors)), None)
            if not self.trains:
                self.engine.note_weights_written()
        return grown.seconds, moved.sent_bytes, grown.bytes + moved.peak_buffer_bytes

    def pack(self) -> Any:
        """For each generator what the plan sends it."""
        with Grown() as grown:
            self.parcels.open({place: [] for place in range(TRAINERS, PLACES)})
            moved = self.stored.run(self.engine.tensors(), {})
            packs = [[each.numpy() for each in self.parcels.by_peer[place]] for place in range(TRAINERS, PLACES)]
        return (*packs, (grown.seconds, moved.sent_bytes, grown.bytes + moved.peak_buffer_bytes))

    def unpack(self, *packs: Any) -> tuple[float, int, int]:
        with Grown() as grown:
            self.parcels.open({place: [torch.from_numpy(each) for each in pack] for place, pack in enumerate(packs)})
            moved = self.stored.run({}, self.engine.tensors())
            self.engine.note_weights_written()
        return grown.seconds, 0, grown.bytes + moved.peak_buffer_bytes

    def gather(self, loader: str) -> tuple[float, int, int]:
        mailbox = self.links._mailboxes["all"]
        with Grown() as grown:
            sent = 0
            if self.trains:
                for _, tensor, size in self.full():
                    sent += size
                    if self.place == 0:
                        posts = [mailbox.send(tensor, place) for place in range(TRAINERS, PLACES)]
                        sent += len(posts) * tensor.nbytes
                        for post in posts:
                            post.wait()
            else:
                self.load(mailbox, loader)
        return grown.seconds, sent, grown.bytes

    def full(self) -> Iterator[tuple[str, Tensor, int]]:
        """Each parameter in full under Hugging Face's name, and what this rank sent for it."""
        sides = [single(layout) for layout in self.layouts[:TRAINERS]]
        for own, tensor in self.parts():
            both = [next(one for one in side if one.name == own.name) for side in sides]
            parts = [torch.empty(one.shape) for one in both]
            split = both[0].pieces != both[1].pieces
            if split:
                dist.all_gather(parts, tensor.contiguous())
            for name in dict.fromkeys(piece.name for one in both for piece in one.pieces):
                pieces = [
                    (piece, part if split else tensor)
                    for one, part in zip(both, parts, strict=True)
                    for piece in one.pieces
                    if piece.name == name
                ]
                yield name, assembled(pieces), tensor.nbytes if split else 0

    def load(self, mailbox: Any, loader: str) -> None:
        """Takes the trainer's parameters as they come, in its order."""

        def arriving() -> Iterator[tuple[str, Tensor]]:
            for own in single(self.layouts[0]):
                for name in dict.fromkeys(piece.name for piece in own.pieces):
                    tensor = torch.empty(shape_of(name, self.layouts[:TRAINERS]))
                    mailbox.receive(tensor, 0).wait()
                    yield name, tensor

        runner = self.engine._engine.model_executor.driver_worker.worker.model_runner
        if loader == "reload":
            runner.reload_weights(weights_iterator=arriving())
        else:
            runner.model.load_weights(arriving())
        self.engine.note_weights_written()


class Parcels(GlooLink):
    """A mailbox that reaches nobody: what is sent is kept, what is received was there before."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.by_peer: dict[int, list[Tensor]] = {}

    def open(self, by_peer: dict[int, list[Tensor]]) -> None:
        self.by_peer = by_peer

    def send(self, message: Tensor, to: int, kind: MessageKind = MessageKind.WHOLE) -> Parcel:
        self.by_peer[to].append(message.clone())
        return Parcel(message)

    def receive(self, message: Tensor, source: int, kind: MessageKind = MessageKind.WHOLE) -> Parcel:
        message.view(-1).copy_(self.by_peer[source].pop(0).view(-1))
        return Parcel(message)


class Parcel(WholeMessage):
    def __init__(self, message: Tensor) -> None:
        self.message = message

    def wait(self) -> None: ...


class Grown:
    """Seconds, and by how much the resident memory of this process went up at most."""

    def __enter__(self) -> Grown:
        # What was freed goes back to the system, so that what is taken again counts; then the peak begins anew.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self.before, self.began = _status("VmRSS"), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.began
        self.bytes = _status("VmHWM") - self.before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name + ":")))


def single(layout: tuple[LocalTensor, ...]) -> list[LocalTensor]:
    """One entry for each tensor, not one for all layers."""
    found = []
    for local in layout:
        for layer in range(local.shape[0]) if "*" in local.name else (None,):
            if layer is None:
                found.append(local)
                continue
            pieces = tuple(
                TensorPiece(piece.name.replace("*", str(layer)), piece.box[1:], piece.at[1:]) for piece in local.pieces
            )
            found.append(LocalTensor(local.name.replace("*", str(layer)), local.shape[1:], pieces))
    return found


def shape_of(name: str, layouts: list[tuple[LocalTensor, ...]]) -> tuple[int, ...]:
    """Of a parameter, from the boxes that ranks hold of it."""
    boxes = [piece.box for layout in layouts for one in single(layout) for piece in one.pieces if piece.name == name]
    return tuple(max(box[dim][1] for box in boxes) for dim in range(len(boxes[0])))


def assembled(pieces: list[tuple[TensorPiece, Tensor]]) -> Tensor:
    """A parameter from its pieces, each in a local tensor."""
    shape = tuple(max(piece.box[dim][1] for piece, _ in pieces) for dim in range(len(pieces[0][0].box)))
    found = torch.empty(shape)
    for piece, tensor in pieces:
        inside = tuple(slice(at, at + b - a) for at, (a, b) in zip(piece.at, piece.box, strict=True))
        found[tuple(slice(*ends) for ends in piece.box)] = tensor[inside]
    return found


def run(way: str, ends: list[Any]) -> dict[str, float]:
    """One transfer: seconds as the driver sees them, bytes sent, and the most memory that a process took."""
    began = time.perf_counter()
    if way == "object store":
        packed = [end.pack.options(num_returns=GENERATORS + 1).remote() for end in ends[:TRAINERS]]
        told = [end.unpack.remote(*(refs[place] for refs in packed)) for place, end in enumerate(ends[TRAINERS:])]
        told = ray.get(told)
        seconds = time.perf_counter() - began
        told += ray.get([refs[-1] for refs in packed])
    else:
        kind, _, loader = way.partition("+")
        told = ray.get([getattr(end, kind).remote(*([loader] if loader else [])) for end in ends])
        seconds = time.perf_counter() - began
    sent = sum(each[1] for each in told)
    return {
        "seconds": seconds,
        "bytes": sent,
        "peak": max(each[2] for each in told),
        "stored": sent * (way == "object store"),
    }


def check(ends: list[Any], layouts: list[tuple[LocalTensor, ...]], way: str) -> None:
    """Whether each generator has what the trainer has."""
    sums = ray.get([end.sums.remote() for end in ends])
    whole = {piece.name for one in single(layouts[0]) for piece in one.pieces if not split(one, layouts)}
    expected = {name: sums[0][name] + (0 if name in whole else sums[1].get(name, 0)) for name in sums[0]}
    for found in sums[TRAINERS:]:
        wrong = [name for name in expected if abs(found[name] - expected[name]) > 1e-6 * (1 + abs(expected[name]))]
        assert not wrong, f"{way}: {wrong[:3]} did not arrive"


def split(own: LocalTensor, layouts: list[tuple[LocalTensor, ...]]) -> bool:
    return next(one for one in single(layouts[1]) if one.name == own.name).pieces != own.pieces


def main() -> None:
    options = arguments()
    heads = options.hidden // 64
    sizes = {
        "hidden_size": options.hidden,
        "intermediate_size": options.ffn,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(2, heads // 2),
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    words = WordTokenizer(" ".join(f"t{number}" for number in range(options.vocab - 3)))
    spec = ModelSpec("causal_lm", RandomWeights("qwen2", sizes, words, 0))
    ray.init(
        address="local",
        num_cpus=PLACES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=2 << 30,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path[:2]), "OMP_NUM_THREADS": "1"}},
    )
    try:
        ends: list[Any] = [ray.remote(End).remote(place, spec) for place in range(PLACES)]
        meeting = ray.get(ends[0].address.remote())
        layouts = ray.get([end.open.remote(meeting) for end in ends])
        sides = dict(enumerate(layouts[:TRAINERS])), dict(enumerate(layouts[TRAINERS:], TRAINERS))
        # The object store passes nothing on from one generator to the other, so the plan does not, either.
        transfer = plan_resharding(
            *sides, itemsize=4, topology=Topology.one_per_device(range(PLACES)), bucket=BUCKET, forward=False
        )
        link = ray.get(ends[0].address.remote())
        ray.get([end.prepare.remote(link, transfer, layouts) for end in ends])
        found = measure(ends, layouts, options.rounds)
    finally:
        ray.shutdown()
    parameters = sum(piece_size(piece) for one in single(layouts[TRAINERS]) for piece in one.pieces)
    show(found, parameters, transfer.bound)
    if options.out:
        told = {
            "what": "weights",
            "parameters": parameters,
            "bound": transfer.bound,
            "ways": found,
            "env": clock.stamp(),
        }
        with open(options.out, "a") as file:
            file.write(json.dumps(told) + "\n")


def measure(ends: list[Any], layouts: list[tuple[LocalTensor, ...]], rounds: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS:
            ray.get([end.change.remote() for end in ends[:TRAINERS]])
            told = run(way, ends)
            check(ends, layouts, way)
            # The first round makes buffers that are kept.
            if number:
                found[way].append(told)
    return found


def piece_size(piece: TensorPiece) -> int:
    size = 1
    for start, stop in piece.box:
        size *= stop - start
    return size


def show(found: dict[str, list[dict[str, float]]], parameters: int, bound: int) -> None:
    print(f"{parameters / 1e6:.1f} million parameters; at least {bound / 1e6:.1f} MB have to travel")
    print(f"{'':14}{'ms':>10}{'MB':>10}{'peak MB':>10}{'in store':>10}{'of gather':>12}")
    slow = statistics.median(each["seconds"] for each in found["gather+load"])
    for way, told in found.items():
        middle = {name: statistics.median(each[name] for each in told) for name in told[0]}
        print(
            f"{way:14}{1e3 * middle['seconds']:>10.1f}{middle['bytes'] / 1e6:>10.1f}{middle['peak'] / 1e6:>10.1f}"
            f"{middle['stored'] / 1e6:>10.1f}{middle['seconds'] / slow:>12.2f}"
        )


if __name__ == "__main__":
    main()
