"""Files with parts of tensors: each rank writes those that it is told to, and reads what it needs of what all wrote.

The files are safetensors. A tensor that is whole in one has its name there; a part of one has its box behind it, in
global indices: `model.norm.weight[0:16]`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import c_ubyte
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.digests import STRETCH, DigestWriter, FileDigests, VerifiedFile
from rlgraph.ir.layout import (
    Box,
    LocalTensor,
    box_elements,
    box_intersection,
    box_slices,
    full_box,
    relative_box,
    shape_of_box,
)
from rlgraph.ir.transfer import TensorBox

BUCKET = 16 << 20
"""Bytes that are copied at a time."""
_CHECKED = 1 << 15
"""Numbers that are checked together: no more than torch gives one thread, beside which others compute."""

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_COUNT = 8
"""Bytes at the beginning of a file that give the length of the header, which says where each tensor lies."""
_METADATA = "__metadata__"
"""The entry of the header that is no tensor."""
_KEY = re.compile(r"(.*?)(?:\[([\d:,]+)\])?")


Reading = Callable[[Tensor], AbstractContextManager[Tensor]]
"""A context in which a tensor stays where it is now; it gives the tensor there."""


@dataclass(frozen=True)
class TensorView:
    """A part of a tensor. It is cut out where the tensor is when it is read: a tensor that sleeps cannot be cut."""

    tensor: Tensor
    index: tuple[slice, ...]
    """The range of each dimension."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(span.stop - span.start for span in self.index)


def write_tensors(
    file: Path,
    tensors: Mapping[str, Tensor | TensorView],
    bucket: int = BUCKET,
    reading: Reading = nullcontext,
    *,
    looks: bool = True,
) -> tuple[FileDigests, str]:
    """Write tensors to a file and flush it to the disk. Return the file's digests, and the name of the first tensor
    that has NaN or infinity in it; empty: none. No more than a bucket is copied at a time, and nothing that lies on the
    host in one piece: safetensors' own writer needs contiguous tensors, which parts of others are not. May be called
    beside the thread that works with the tensors and moves them: `reading` holds them in place. looks: for NaN and
    infinity. Raises OSError."""
    header, end, first_bad = {}, 0, ""
    views = {
        name: tensor if isinstance(tensor, TensorView) else _full_view(tensor)
        for name, tensor in sorted(tensors.items())
    }
    for name, view in views.items():
        start, end = end, end + math.prod(view.shape) * view.tensor.element_size()
        header[name] = {"dtype": _TYPES[view.tensor.dtype], "shape": list(view.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with file.open("wb") as opened:
        out = DigestWriter(opened)
        out.write(len(encoded).to_bytes(_COUNT, "little") + encoded)
        for name, view in views.items():
            cuts = _cuts(view.shape, view.tensor.element_size(), bucket)
            finite = [_write_cut(out, view, cut, reading, looks) for cut in cuts]
            first_bad = first_bad if all(finite) or first_bad else name
        opened.flush()
        os.fsync(opened.fileno())
    return out.written_digests(), first_bad


def _full_view(tensor: Tensor) -> TensorView:
    return TensorView(tensor, tuple(slice(0, size) for size in tensor.shape))


Cut = tuple[int | slice, ...]


def _cuts(shape: tuple[int, ...], width: int, bucket: int) -> Iterator[Cut]:
    """Yield pieces of no more than a bucket each, in the order of their numbers, of `width` bytes."""
    row = math.prod(shape[1:]) * width
    if not math.prod(shape):
        return
    if not shape or shape[0] * row <= bucket:
        yield ()
    elif row > bucket:
        for at in range(shape[0]):
            yield from ((at, *inner) for inner in _cuts(shape[1:], width, bucket))
    else:
        rows = max(1, bucket // row)
        yield from ((slice(start, start + rows),) for start in range(0, shape[0], rows))


def _write_cut(out: DigestWriter, view: TensorView, cut: Cut, reading: Reading, looks: bool) -> bool:
    """Write a piece, and return whether all of it is finite."""
    with reading(view.tensor) as current, _copy_stream(current):
        numbers = current.detach()[view.index][cut].to("cpu").contiguous().reshape(-1)
        # As a numpy array its storage could no longer be emptied when its model is offloaded.
        out.write((c_ubyte * (numbers.numel() * numbers.element_size())).from_address(numbers.data_ptr()))
        return not looks or all(map(are_sound, numbers.split(_CHECKED)))


@contextmanager
def _copy_stream(tensor: Tensor) -> Iterator[None]:
    """Copy from a device beside what is computed there, and after what was computed before."""
    if not tensor.is_cuda:
        yield
        return
    stream = torch.cuda.Stream(tensor.device)
    stream.wait_stream(torch.cuda.default_stream(tensor.device))
    with torch.cuda.stream(stream):
        yield


def are_sound(numbers: Tensor) -> bool:
    """Return whether all numbers are finite, and so are their squares: a model computes with products of its weights,
    and gives NaN where these overflow. No memory for as many again is needed: the least and the largest are NaN where
    one of them is."""
    if not numbers.is_floating_point() or not numbers.numel():
        return True
    return all(
        bool(end.to(torch.promote_types(end.dtype, torch.float32)).square().isfinite()) for end in numbers.aminmax()
    )


def first_diverged_tensor(folder: Path) -> str:
    """Return the name of the first tensor in the files of a model's folder that is not sound; empty if all are."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if not are_sound(tensors.get_tensor(name)):
                    return str(name)
    return ""


def select_views(
    tensors: Mapping[str, Tensor],
    layout: Iterable[LocalTensor],
    boxes: Iterable[TensorBox],
    whole_of: Mapping[str, Box],
) -> dict[str, TensorView]:
    """Return parts of a rank's tensors, by their names in a file. layout: of these tensors, layer by layer. boxes: the
    wanted ones of the global tensors; whole_of: all of each."""
    wanted: dict[str, list[Box]] = {}
    for name, box in boxes:
        wanted.setdefault(name, []).append(box)
    views: dict[str, TensorView] = {}
    for local in layout:
        for piece in local.pieces:
            for box in wanted.get(piece.name, ()):
                inner = box_intersection(piece.box, box)
                if inner is not None:
                    sides = zip(inner, piece.box, piece.at, strict=True)
                    at = tuple(
                        slice(low - first + offset, high - first + offset) for (low, high), (first, _), offset in sides
                    )
                    views[_key(piece.name, inner, whole_of[piece.name])] = TensorView(tensors[local.name], at)
    return views


def _key(name: str, box: Box, all_of_it: Box) -> str:
    return name if box == all_of_it else f"{name}[{','.join(f'{low}:{high}' for low, high in box)}]"


def full_boxes(layouts: Iterable[Iterable[LocalTensor]]) -> dict[str, Box]:
    """Return all of each tensor that several ranks have parts of, as a box."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layout in layouts:
        for local in layout:
            for piece in local.pieces:
                ends = tuple(stop for _, stop in piece.box)
                shapes[piece.name] = tuple(map(max, ends, shapes.get(piece.name, ends)))
    return {name: full_box(shape) for name, shape in shapes.items()}


class _File:
    """One of the files. What is read of it is checked against its digests first."""

    def __init__(self, path: Path, digests: FileDigests) -> None:
        """Raises OSError, DamagedFile."""
        self._checked = VerifiedFile(path, digests)
        self._checked.verify_range(0, min(_COUNT, digests.bytes))
        with path.open("rb") as file:
            begin = _COUNT + int.from_bytes(file.read(_COUNT), "little")
            self._checked.verify_range(0, begin)
            header = json.loads(file.read(begin - _COUNT))
        self._opened: Any = safe_open(path, framework="pt")
        self.shapes = {name: tuple(header[name]["shape"]) for name in header if name != _METADATA}
        self._at = {name: tuple(begin + at for at in header[name]["data_offsets"]) for name in self.shapes}

    def read(self, name: str, box: Box) -> Tensor:
        """Return a part of a tensor, or all of one without axes. Raises OSError, DamagedFile."""
        start, end = self._at[name]
        shape = self.shapes[name]
        if not shape:
            self._checked.verify_range(start, end)
            return self._opened.get_tensor(name)  # type: ignore[no-any-return]
        for first, last in _runs(shape, box, (end - start) // max(1, math.prod(shape))):
            self._checked.verify_range(start + first, start + last)
        return self._opened.get_slice(name)[box_slices(box)]  # type: ignore[no-any-return]


def _runs(shape: tuple[int, ...], box: Box, width: int) -> Iterator[tuple[int, int]]:
    """Yield from which byte to which a box of a tensor lies, whose numbers have `width` bytes: one run, or one for each
    row where rows are long."""
    (low, high), *inner = box
    row = math.prod(shape[1:]) * width
    if row <= STRETCH or tuple(inner) == full_box(shape[1:]):
        yield low * row, high * row
        return
    for at in range(low, high):
        yield from ((at * row + first, at * row + last) for first, last in _runs(shape[1:], tuple(inner), width))


class StoredTensors:
    """The contents of several ranks' files. Only what is asked for is read, and all of that is as it was written."""

    def __init__(self, files: Mapping[Path, FileDigests]) -> None:
        """Raises OSError, and Damaged where a file is not as it was written."""
        self._parts: dict[str, list[tuple[Box, _File, str]]] = {}
        for path, digests in files.items():
            file = _File(path, digests)
            for key, shape in file.shapes.items():
                name, box = _KEY.fullmatch(key).groups()  # type: ignore[union-attr]
                ranges = tuple(tuple(map(int, part.split(":"))) for part in box.split(",")) if box else full_box(shape)
                self._parts.setdefault(name, []).append((ranges, file, key))  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._parts)

    def full_box(self, name: str) -> Box:
        """Return all of a tensor, as a box."""
        return full_box(
            tuple(map(max, zip(*([stop for _, stop in box] for box, *_ in self._parts[name]), strict=True)))
        )

    def read(self, name: str, box: Box) -> Tensor:
        """Return a part of a tensor. Raises EngineError where there is none of that name, or another shape, OSError,
        Damaged."""
        parts = self._parts.get(name, ())
        if not parts:
            raise EngineError(f"there is no tensor {name}")
        missing, result = box_elements(box), None
        for part_box, file, stored in parts:
            if len(part_box) != len(box):
                break
            if not box:
                return file.read(stored, box)
            inner = box_intersection(part_box, box)
            if inner is None:
                continue
            values = file.read(stored, relative_box(part_box, inner))
            if inner == box:
                return values
            if result is None:
                result = torch.empty(shape_of_box(box), dtype=values.dtype)
            result[box_slices(relative_box(box, inner))] = values
            missing -= box_elements(inner)
        if result is None or missing:
            shape = " x ".join(str(stop) for _, stop in self.full_box(name)) or "a number"
            raise EngineError(f"the tensor {name} has another shape there: {shape}")
        return result

    def tensors_of_kind(self, kind: str) -> TensorsOfKind:
        """Return the tensors of one kind, among those that are called `KIND:NAME`."""
        return TensorsOfKind(self, kind)


class TensorsOfKind:
    """The tensors of one kind in `StoredTensors`, under names without the kind."""

    def __init__(self, stored: StoredTensors, kind: str) -> None:
        self._stored, self._kind = stored, kind

    def read(self, name: str, box: Box) -> Tensor:
        """Return a part of a tensor of this kind, as `StoredTensors.read` does."""
        return self._stored.read(f"{self._kind}:{name}", box)
