"""Rows in pieces: taken, joined, sent, found again. What comes out is what plain lists of rows say."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlgraph.backends.distributed.sharding import RequestNeeds, slice_rows
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame
from rlgraph.backends.ray.piece_store import Piece, PieceStore, as_array, as_range, from_wire, to_wire, wire_bytes
from rlgraph.backends.ray.requests import WantedRows
from rlgraph.backends.ray.row_ledger import RowLedger
from rlgraph.backends.ray.row_refs import Address, PieceRef, RowRefs
from rlgraph.backends.rows import Rows, TableData
from rlgraph.backends.step import Step
from rlgraph.ir.layout import even_range
from rlgraph.ir.types import Axis, Table, Tensor

PROMPTS = Axis("prompts", "prompts")
ROLLOUT = Axis("rollout", "rollout", PROMPTS)
TOKEN = Axis("rollout.token", "token", ROLLOUT, inner=True)

Ragged = list[list[int]]
ragged = st.lists(st.lists(st.integers(0, 99), max_size=3), min_size=1, max_size=6)


def flat(rows: Ragged) -> Piece:
    """A number for each token."""
    counts = np.array([len(row) for row in rows])
    values = torch.tensor([float(number) for row in rows for number in row], dtype=torch.float64)
    return Piece(Tensor("float", TOKEN), values, (counts,))


def table(rows: Ragged) -> Piece:
    """Each row is asked its own length, and answers with its numbers."""
    kind = Table(ROLLOUT, TOKEN, sampled=True)
    counts = torch.tensor([len(row) for row in rows])
    columns = {"logprobs": flat(rows).value, "finished": counts > 1, "version": counts}
    sequences = Sequences.from_pairs([[7] * len(row) for row in rows], rows)
    data = tuple({"prompt": str(row)} for row in rows)
    return Piece(kind, TableData(data, tuple(map(str, rows)), sequences, columns, "actor"), (None, counts.numpy()))


def told(piece: Piece) -> list[Any]:
    """The rows again."""
    counts = next(each for each in piece.counts if each is not None)
    if not isinstance(piece.value, TableData):
        return [part.tolist() for part in piece.value.split(counts.tolist())]
    found = piece.value
    assert found.sequences is not None and found.owner == "actor"
    chances = found.columns["logprobs"].split(counts.tolist())
    return [
        (row["prompt"], prompt, tokens, chance.tolist(), bool(finished), int(version))
        for row, prompt, tokens, chance, finished, version in zip(
            found.data,
            found.prompts,
            found.sequences.rows(),
            chances,
            found.columns["finished"],
            found.columns["version"],
            strict=True,
        )
    ]


MAKERS = pytest.mark.parametrize("make", [flat, table])


@MAKERS
@given(rows=ragged, data=st.data())
def test_rows_that_are_taken(make: Any, rows: Ragged, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    piece = make(rows)
    taken = piece.take_rows(np.array(places, dtype=np.int64))
    assert (piece.row_count, taken.row_count) == (len(rows), len(places))
    assert told(taken) == [told(piece)[place] for place in places]


@MAKERS
def test_of_consecutive_rows_nothing_is_copied(make: Any) -> None:
    rows = [[1], [], [2, 3], [4, 5, 6], [7], []]
    piece = make(rows)
    taken = piece.take_rows(np.arange(2, 5))
    assert told(taken) == told(piece)[2:5] and told(taken.take_rows(np.array([1]))) == told(piece)[3:4]
    values = (each.value.columns["logprobs"] if make is table else each.value for each in (piece, taken))
    whole, part = values
    assert part.data_ptr() == whole.data_ptr() + whole.element_size()


@MAKERS
@given(parts=st.lists(ragged, min_size=1, max_size=3))
def test_pieces_that_are_joined(make: Any, parts: list[Ragged]) -> None:
    joined = Piece.concatenate([make(rows) for rows in parts])
    assert told(joined) == [row for rows in parts for row in told(make(rows))]


@MAKERS
@given(rows=ragged)
def test_the_wire(make: Any, rows: Ragged) -> None:
    piece = make(rows)
    wire = pickle.loads(pickle.dumps(to_wire(piece), protocol=5))
    again = from_wire(wire)
    assert told(again) == told(piece)
    assert again.kind == piece.kind


def test_what_is_sent_has_no_padding() -> None:
    """One long row among short ones: bytes are those of the tokens that there are."""
    rows = [[1]] * 99 + [[1] * 1000]
    assert wire_bytes(to_wire(flat(rows))) == 8 * (99 + 1000) + 8 * 100


def test_arrays_that_cannot_be_written_become_tensors_that_can() -> None:
    kind, value, counts = to_wire(flat([[1, 2], [3]]))
    value.values.flags.writeable = False
    received = from_wire((kind, value, counts)).value
    received += 1
    assert value.values.tolist() == [1, 2, 3]


@given(st.lists(st.integers(0, 9)))
def test_places_on_the_wire(places: list[int]) -> None:
    found = as_range(np.array(places, dtype=np.int64))
    assert as_array(found).tolist() == places
    assert isinstance(found, range) == (bool(places) and places == list(range(places[0], places[0] + len(places))))


# References


@given(st.data())
def test_references_are_picked_and_joined_as_rows_are(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    known = [_remote(number, count) for number, count in enumerate(sizes)]
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            chosen = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
            made = (
                chosen[0][0].concat([remote for remote, _ in chosen[1:]]),
                [row for _, rows in chosen for row in rows],
            )
        else:
            remote, rows = data.draw(st.sampled_from(known))
            places = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else []
            made = remote.pick(np.array(places, dtype=np.int64)), [rows[place] for place in places]
        known.append(made)
    for remote, rows in known:
        assert _rows(remote) == rows
        assert sorted((ref.key[0], place) for ref, places in remote.places_by_piece() for place in places) == sorted(
            rows
        )


def _remote(number: int, count: int, holder: Address = ("a", 0)) -> tuple[RowRefs, list[tuple[int, int]]]:
    """All rows of a piece, and how this test names them."""
    return RowRefs.from_whole_piece(PieceRef((number, holder[1], "x"), holder, count)), [
        (number, place) for place in range(count)
    ]


def _rows(remote: RowRefs) -> list[tuple[int, int]]:
    return [(remote.pieces[piece].key[0], int(place)) for piece, place in zip(remote.piece, remote.place, strict=True)]


# What travels


class Stores:
    """What `RowLedger` needs of processes: they have rows."""

    def __init__(self, who: Sequence[Address]) -> None:
        self.stores = {each: PieceStore() for each in who}
        self.sent: list[tuple[Address, list[tuple[Any, list[int]]]]] = []

    def pack_rows(self, who: Address, parcels: Sequence[Any]) -> list[Any]:
        return [self.parcel(who, wishes) for wishes in parcels]

    def parcel(self, who: Address, wishes: Any) -> Any:
        wanted = [(key, as_array(places)) for key, places, _ in wishes]
        self.sent.append((who, [(key, places.tolist()) for key, places in wanted]))
        return [(key, places, to_wire(self.stores[who].get_rows(key, places))) for key, places in wanted]


WHO: list[Address] = [("a", 0), ("a", 1), ("b", 0)]


@given(st.data())
def test_each_row_reaches_a_process_once(data: st.DataObject) -> None:
    """Whatever was asked for before, in any order, of steps that are under way together: what a process lacks for a
    step is sent once, it finds the rows that are meant, and forgets them with the step."""
    processes = Stores(WHO)
    ledger = RowLedger(processes)  # type: ignore[arg-type]
    values: list[tuple[RowRefs, list[float]]] = []
    for number in range(3):
        holder, numbers = data.draw(st.sampled_from(WHO)), [100.0 * number + row for row in range(4)]
        remote, _ = _remote(number, len(numbers), holder)
        processes.stores[holder].put(
            0, remote.pieces[0].key, Piece(Tensor("float", PROMPTS), torch.tensor(numbers), (None,))
        )
        values.append((remote, numbers))
    came: dict[tuple[Address, int], list[tuple[int, int]]] = {}
    steps = [1, 2, 3]
    whole, all_numbers = (
        values[0][0].concat([remote for remote, _ in values[1:]]),
        [each for _, numbers in values for each in numbers],
    )
    for _ in range(data.draw(st.integers(1, 7))):
        if data.draw(st.integers(0, 4)) == 0 and len(steps) > 1:
            over = Step(steps.pop(0), "step")
            ledger.forget_step(over)
            for store in processes.stores.values():
                store.keep_only(over.number, [remote.pieces[0].key for remote, _ in values])
        places = data.draw(st.lists(st.integers(0, len(all_numbers) - 1), min_size=1, max_size=6))
        step = data.draw(st.sampled_from(steps))
        frame = Frame({"x": Tensor("float", PROMPTS)}, Step(step, "step"), values_are_remote=True)
        frame.add_rows(Rows(PROMPTS, len(places)))
        frame.values["x"] = whole.pick(np.array(places))
        to = data.draw(st.lists(st.sampled_from(WHO), min_size=1, unique=True))
        deliveries = ledger.plan_deliveries(to, frame, RequestNeeds(("x",), [PROMPTS], ids=False))
        ledger.pack_missing_rows(deliveries)
        for who, delivery in zip(to, deliveries, strict=True):
            for wire in delivery.packed_rows:
                for key, rows, packed in wire:
                    came.setdefault((who, step), []).extend((key[0], int(row)) for row in rows)
                    processes.stores[who].store_received(step, key, rows, from_wire(packed))
            wanted = delivery.inputs["x"]
            assert isinstance(wanted, WantedRows)
            piece = Piece.concatenate(
                [processes.stores[who].get_rows(key, as_array(rows), step) for key, rows, _ in wanted.parts]
            )
            piece = piece if wanted.order is None else piece.take_rows(wanted.order)
            assert piece.value.tolist() == [all_numbers[place] for place in places]
    for (who, _), rows in came.items():
        assert len(set(rows)) == len(rows)
        assert not any(values[number][0].pieces[0].holder == who for number, _ in rows)


def test_what_two_ranks_need_is_packed_once() -> None:
    processes = Stores(WHO)
    remote, _ = _remote(0, 4, ("b", 0))
    processes.stores["b", 0].put(1, remote.pieces[0].key, Piece(Tensor("float", PROMPTS), torch.arange(4.0), (None,)))
    frame = Frame({"x": Tensor("float", PROMPTS)}, Step(1, "step"), values_are_remote=True)
    frame.add_rows(Rows(PROMPTS, 4))
    frame.values["x"] = remote
    ledger = RowLedger(processes)  # type: ignore[arg-type]
    ledger.pack_missing_rows(
        ledger.plan_deliveries([("a", 0), ("a", 1)], frame, RequestNeeds(("x",), [PROMPTS], ids=False))
    )
    assert processes.sent == [(("b", 0), [((0, 0, "x"), [0, 1, 2, 3])])]


def test_what_a_step_made_and_got_goes_with_it() -> None:
    """What a later step has stays, and what lives on."""
    store, piece = PieceStore(), flat([[1, 2], [3]])
    rows = np.arange(2)
    store.put(1, (1, 0, "x"), piece)
    store.put(1, (1, 0, "buffer"), piece)
    store.put(2, (2, 0, "x"), piece)
    store.store_received(1, (3, 0, "y"), rows, piece)
    store.store_received(2, (3, 0, "y"), rows[1:], piece.take_rows(rows[1:]))
    store.keep_only(1, [(1, 0, "buffer")])
    assert told(store.get_rows((1, 0, "buffer"), rows)) == told(store.get_rows((2, 0, "x"), rows)) == told(piece)
    assert told(store.get_rows((3, 0, "y"), rows[1:], 2)) == told(piece)[1:]
    for gone in (lambda: store.get_rows((1, 0, "x"), rows), lambda: store.get_rows((3, 0, "y"), rows, 1)):
        with pytest.raises(AssertionError, match="is not here"):
            gone()
    store.keep_only(2, [])
    with pytest.raises(AssertionError, match="is not here"):
        store.get_rows((1, 0, "buffer"), rows)


# Shares


@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=7),
    copies=st.integers(1, 4),
    axis=st.sampled_from(["prompts", "rollout"]),
)
def test_shares_of_a_frame(counts: list[int], copies: int, axis: str) -> None:
    """Every row is in one share, with its own prompt; prompts of no row are in none where rows are shared out."""
    parents = np.repeat(np.arange(len(counts)), counts)
    types = {"p": Tensor("float", PROMPTS), "r": Tensor("float", ROLLOUT), "one": Tensor("float")}
    frame = Frame(types, Step(1, "step"))
    frame.add_rows(Rows(PROMPTS, len(counts), None, tuple(("p", 0, place) for place in range(len(counts)))))
    frame.add_rows(Rows(ROLLOUT, len(parents), parents, tuple(("r", 0, place) for place in range(len(parents)))))
    frame.values |= {
        "p": torch.arange(len(counts)) * 10.0,
        "r": torch.arange(float(len(parents))),
        "one": torch.tensor(1.0),
    }
    size = frame.row_count(axis)
    ranges = (even_range(size, copies, copy) for copy in range(copies))
    shares = [slice_rows(frame, axis, np.arange(*own), ["p", "r", "one"]) for own in ranges]
    sizes = [own.row_count(axis) for own, _ in shares]
    assert len(shares) == copies and sum(sizes) == frame.row_count(axis) and max(sizes) - min(sizes) <= 1
    assert [row for one, _ in shares for row in one.values["r"].tolist()] == frame.values["r"].tolist()
    for mine, places in shares:
        own = mine.values["r"].numpy().astype(np.int64)
        above = mine.ancestor_rows("rollout", "prompts")
        assert torch.equal(mine.values["p"][above], frame.values["p"][parents[own]])
        assert [row[2] for row in mine.rows["rollout"].ids] == own.tolist()  # type: ignore[index, union-attr]
        assert torch.equal(frame.values["p"][places["prompts"]], mine.values["p"])
        assert mine.values["one"] == 1
        if axis == "rollout":
            assert mine.row_count("prompts") == len(set(parents[own].tolist()))
    again = frame.child_frame()
    again.assemble_slices(shares, (axis,), {"r": "r", **({"p": "p"} if axis == "prompts" else {})})
    assert torch.equal(again.values["r"], frame.values["r"]) and torch.equal(again.values["p"], frame.values["p"])
