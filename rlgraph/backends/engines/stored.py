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

from rlgraph.backends.engines.base import EngineError
from rlgraph.digests import STRETCH, Digesting, Digests, Looked
from rlgraph.ir.layout import Box, Local, common, volume, whole
from rlgraph.ir.transfer import TensorBox

BUCKET = 16 << 20
"""Bytes that are copied at a time."""
_LOOKED_AT = 1 << 15
"""Numbers that are looked at together: no more than torch gives one thread, which others compute beside."""

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
"""Bytes at the beginning of a file that say how long what follows is, which says where each tensor lies."""
_ABOUT = "__metadata__"
"""What is no tensor there."""
_KEY = re.compile(r"(.*?)(?:\[([\d:,]+)\])?")


Reading = Callable[[Tensor], AbstractContextManager[Tensor]]
"""A tensor where it is now, and stays while the context lasts."""


@dataclass(frozen=True)
class View:
    """A part of a tensor. It is cut out where the tensor is when it is read: of one that sleeps nothing can be."""

    of: Tensor
    at: tuple[slice, ...]
    """Of each dimension."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(each.stop - each.start for each in self.at)


def write(
    file: Path,
    tensors: Mapping[str, Tensor | View],
    bucket: int = BUCKET,
    reading: Reading = nullcontext,
    *,
    looks: bool = True,
) -> tuple[Digests, str]:
    """Writes tensors, and gives them to the disk. The file's digests, and the first of the tensors that has NaN or
    infinity in it; empty: none. No more than a bucket of them is copied at a time, and none of what lies on the host in
    one piece: safetensors' own writer wants all of them so, which parts of others are not. May be called beside what
    reads the tensors, which may move them with `reading`. looks: for NaN and infinity. Raises OSError."""
    header, end, odd = {}, 0, ""
    views = {name: each if isinstance(each, View) else _all(each) for name, each in sorted(tensors.items())}
    for name, view in views.items():
        start, end = end, end + math.prod(view.shape) * view.of.element_size()
        header[name] = {"dtype": _TYPES[view.of.dtype], "shape": list(view.shape), "data_offsets": [start, end]}
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    with file.open("wb") as opened:
        out = Digesting(opened)
        out.write(len(said).to_bytes(_COUNT, "little") + said)
        for name, view in views.items():
            cuts = _cuts(view.shape, view.of.element_size(), bucket)
            finite = [_copied(out, view, cut, reading, looks) for cut in cuts]
            odd = odd if all(finite) or odd else name
        opened.flush()
        os.fsync(opened.fileno())
    return out.digests(), odd


def _all(tensor: Tensor) -> View:
    return View(tensor, tuple(slice(0, size) for size in tensor.shape))


Cut = tuple[int | slice, ...]


def _cuts(shape: tuple[int, ...], width: int, bucket: int) -> Iterator[Cut]:
    """Pieces of no more than a bucket each, in the order of their numbers, of `width` bytes."""
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


def _copied(out: Digesting, view: View, cut: Cut, reading: Reading, looks: bool) -> bool:
    """Whether all of a piece is finite."""
    with reading(view.of) as there, _beside(there):
        here = there.detach()[view.at][cut].to("cpu").contiguous().reshape(-1)
        # As an array of numpy its storage could not be emptied any more, when its model is put to sleep.
        out.write((c_ubyte * (here.numel() * here.element_size())).from_address(here.data_ptr()))
        return not looks or not here.is_floating_point() or all(map(_finite, here.split(_LOOKED_AT)))


@contextmanager
def _beside(tensor: Tensor) -> Iterator[None]:
    """What is copied from a device is copied beside what is computed there, and behind what was before."""
    if not tensor.is_cuda:
        yield
        return
    own = torch.cuda.Stream(tensor.device)
    own.wait_stream(torch.cuda.default_stream(tensor.device))
    with torch.cuda.stream(own):
        yield


def _finite(numbers: Tensor) -> bool:
    """Without room for as many again: the least and the largest are NaN where one of them is."""
    return all(bool(end.isfinite()) for end in numbers.aminmax())


def chosen(
    tensors: Mapping[str, Tensor], layout: Iterable[Local], boxes: Iterable[TensorBox], whole_of: Mapping[str, Box]
) -> dict[str, View]:
    """Parts of a rank's tensors, by what they are called in a file. layout: of these tensors, layer by layer. boxes:
    those that are wanted of the global tensors; whole_of: all of each."""
    wanted: dict[str, list[Box]] = {}
    for name, box in boxes:
        wanted.setdefault(name, []).append(box)
    found: dict[str, View] = {}
    for local in layout:
        for piece in local.pieces:
            for box in wanted.get(piece.name, ()):
                inner = common(piece.box, box)
                if inner is not None:
                    lies = zip(inner, piece.box, piece.at, strict=True)
                    at = tuple(slice(low - first + to, high - first + to) for (low, high), (first, _), to in lies)
                    found[_key(piece.name, inner, whole_of[piece.name])] = View(tensors[local.name], at)
    return found


def _key(name: str, box: Box, all_of_it: Box) -> str:
    return name if box == all_of_it else f"{name}[{','.join(f'{low}:{high}' for low, high in box)}]"


def extents(layouts: Iterable[Iterable[Local]]) -> dict[str, Box]:
    """All of each tensor that several ranks have parts of."""
    found: dict[str, tuple[int, ...]] = {}
    for layout in layouts:
        for local in layout:
            for piece in local.pieces:
                far = tuple(stop for _, stop in piece.box)
                found[piece.name] = tuple(map(max, far, found.get(piece.name, far)))
    return {name: whole(shape) for name, shape in found.items()}


class _File:
    """One of the files. What is read of it is looked at first."""

    def __init__(self, path: Path, told: Digests) -> None:
        """Raises OSError, Damaged."""
        self._looked = Looked(path, told)
        self._looked.need(0, min(_COUNT, told.bytes))
        with path.open("rb") as file:
            begin = _COUNT + int.from_bytes(file.read(_COUNT), "little")
            self._looked.need(0, begin)
            header = json.loads(file.read(begin - _COUNT))
        self._opened: Any = safe_open(path, framework="pt")
        self.shapes = {name: tuple(header[name]["shape"]) for name in header if name != _ABOUT}
        self._at = {name: tuple(begin + at for at in header[name]["data_offsets"]) for name in self.shapes}

    def read(self, name: str, box: Box) -> Tensor:
        """A part of a tensor, or all of one without axes. Raises OSError, Damaged."""
        start, end = self._at[name]
        shape = self.shapes[name]
        if not shape:
            self._looked.need(start, end)
            return self._opened.get_tensor(name)  # type: ignore[no-any-return]
        for first, last in _runs(shape, box, (end - start) // max(1, math.prod(shape))):
            self._looked.need(start + first, start + last)
        return self._opened.get_slice(name)[tuple(slice(*side) for side in box)]  # type: ignore[no-any-return]


def _runs(shape: tuple[int, ...], box: Box, width: int) -> Iterator[tuple[int, int]]:
    """From which byte to which a box of a tensor lies, whose numbers have `width` bytes: one run, or one for each row
    where rows are long."""
    (low, high), *inner = box
    row = math.prod(shape[1:]) * width
    if row <= STRETCH or tuple(inner) == whole(shape[1:]):
        yield low * row, high * row
        return
    for at in range(low, high):
        yield from ((at * row + first, at * row + last) for first, last in _runs(shape[1:], tuple(inner), width))


class Stored:
    """What the files of several ranks have together. Only what is asked for is read, and all of that is as it was
    written."""

    def __init__(self, files: Mapping[Path, Digests]) -> None:
        """Raises OSError, Damaged where one is not as it was written."""
        self._parts: dict[str, list[tuple[Box, _File, str]]] = {}
        for path, told in files.items():
            file = _File(path, told)
            for each, shape in file.shapes.items():
                name, box = _KEY.fullmatch(each).groups()  # type: ignore[union-attr]
                ranges = tuple(tuple(map(int, part.split(":"))) for part in box.split(",")) if box else whole(shape)
                self._parts.setdefault(name, []).append((ranges, file, each))  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        return list(self._parts)

    def box(self, name: str) -> Box:
        """All of a tensor."""
        return whole(tuple(map(max, zip(*([stop for _, stop in box] for box, *_ in self._parts[name]), strict=True))))

    def read(self, name: str, box: Box) -> Tensor:
        """A part of a tensor. Raises EngineError where there is none of that name, or another shape, OSError,
        Damaged."""
        parts = self._parts.get(name, ())
        if not parts:
            raise EngineError(f"there is no tensor {name}")
        missing, found = volume(box), None
        for there, file, stored in parts:
            if len(there) != len(box):
                break
            if not box:
                return file.read(stored, box)
            inner = common(there, box)
            if inner is None:
                continue
            values = file.read(stored, _shifted(there, inner))
            if inner == box:
                return values
            if found is None:
                found = torch.empty([stop - start for start, stop in box], dtype=values.dtype)
            found[tuple(slice(*side) for side in _shifted(box, inner))] = values
            missing -= volume(inner)
        if found is None or missing:
            shape = " x ".join(str(stop) for _, stop in self.box(name)) or "a number"
            raise EngineError(f"the tensor {name} has another shape there: {shape}")
        return found

    def under(self, kind: str) -> Under:
        """Of tensors that are called `KIND:NAME` those of a kind."""
        return Under(self, kind)


class Under:
    def __init__(self, stored: Stored, kind: str) -> None:
        self._stored, self._kind = stored, kind

    def read(self, name: str, box: Box) -> Tensor:
        return self._stored.read(f"{self._kind}:{name}", box)


def _shifted(outer: Box, inner: Box) -> Box:
    """Where a box lies in another one."""
    return tuple((low - first, high - first) for (low, high), (first, _) in zip(inner, outer, strict=True))
