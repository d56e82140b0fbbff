"""Files with parts of tensors: each rank writes those that it is told to, and reads what it needs of what all wrote.

The files are safetensors. A tensor that is whole in one has its name there; a part of one has its box behind it, in
global indices: `model.norm.weight[0:16]`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open
from torch import Tensor

from rlgraph.engines.base import EngineError
from rlgraph.ir.layout import Box, Local, common, volume, whole
from rlgraph.ir.transfer import TensorBox

BUCKET = 16 << 20
"""Bytes that are copied at a time."""

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
_KEY = re.compile(r"(.*?)(?:\[([\d:,]+)\])?")


def write(file: Path, tensors: Mapping[str, Tensor], bucket: int = BUCKET) -> str:
    """Writes tensors, and gives them to the disk. The first of them that has NaN or infinity in it; empty: none. No
    more than a bucket of them is copied at a time: safetensors' own writer wants all of them on the host, and in one
    piece each, which parts of others are not. Raises OSError."""
    header, end, odd = {}, 0, ""
    tensors = dict(sorted(tensors.items()))
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    with file.open("wb") as out:
        out.write(len(said).to_bytes(8, "little") + said)
        for name, tensor in tensors.items():
            finite = _copied(out, tensor.detach(), bucket)
            odd = odd if finite or odd else name
        out.flush()
        os.fsync(out.fileno())
    return odd


def _copied(out: IO[bytes], tensor: Tensor, bucket: int) -> bool:
    """Whether all of it is finite."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return True
    if size > bucket and tensor.shape[0] > 1:
        rows = max(1, bucket * tensor.shape[0] // size)
        return all([_copied(out, part, bucket) for part in tensor.split(rows)])
    if size > bucket and tensor.dim() > 1:
        return _copied(out, tensor[0], bucket)
    here = tensor.to("cpu").contiguous()
    out.write(here.reshape(-1).view(torch.uint8).numpy().data)
    return not here.is_floating_point() or bool(here.isfinite().all())


def chosen(
    tensors: Mapping[str, Tensor], layout: Iterable[Local], boxes: Iterable[TensorBox], whole_of: Mapping[str, Box]
) -> dict[str, Tensor]:
    """Parts of a rank's tensors, as views, by what they are called in a file. layout: of these tensors, layer by layer.
    boxes: those that are wanted of the global tensors; whole_of: all of each."""
    wanted: dict[str, list[Box]] = {}
    for name, box in boxes:
        wanted.setdefault(name, []).append(box)
    found = {}
    for local in layout:
        for piece in local.pieces:
            for box in wanted.get(piece.name, ()):
                inner = common(piece.box, box)
                if inner is not None:
                    lies = zip(inner, piece.box, piece.at, strict=True)
                    at = tuple(slice(low - first + to, high - first + to) for (low, high), (first, _), to in lies)
                    found[_key(piece.name, inner, whole_of[piece.name])] = tensors[local.name][at]
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


class Stored:
    """What the files of several ranks have together. Only what is asked for is read."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises EngineError where one cannot be read."""
        self._parts: dict[str, list[tuple[Box, Any, str]]] = {}
        for file in files:
            try:
                opened: Any = safe_open(file, framework="pt")
                shapes = {each: tuple(opened.get_slice(each).get_shape()) for each in [*opened.keys()]}
            except Exception as error:  # safetensors has a class of its own, and a file may hold anything
                raise EngineError(f"cannot read `{file}`: {error}") from error
            for each, shape in shapes.items():
                name, box = _KEY.fullmatch(each).groups()  # type: ignore[union-attr]
                ranges = tuple(tuple(map(int, part.split(":"))) for part in box.split(",")) if box else whole(shape)
                self._parts.setdefault(name, []).append((ranges, opened, each))  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        return list(self._parts)

    def box(self, name: str) -> Box:
        """All of a tensor."""
        return whole(tuple(map(max, zip(*([stop for _, stop in box] for box, *_ in self._parts[name]), strict=True))))

    def read(self, name: str, box: Box) -> Tensor:
        """A part of a tensor. Raises EngineError where there is none of that name, or another shape."""
        parts = self._parts.get(name, ())
        if not parts:
            raise EngineError(f"there is no tensor {name}")
        missing, found = volume(box), None
        for there, opened, stored in parts:
            if len(there) != len(box):
                break
            if not box:
                return opened.get_tensor(stored)  # type: ignore[no-any-return]
            inner = common(there, box)
            if inner is None:
                continue
            values = opened.get_slice(stored)[_inside(there, inner)]
            if inner == box:
                return values  # type: ignore[no-any-return]
            if found is None:
                found = torch.empty([stop - start for start, stop in box], dtype=values.dtype)
            found[_inside(box, inner)] = values
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


def _inside(outer: Box, inner: Box) -> tuple[slice, ...]:
    return tuple(slice(low - first, high - first) for (low, high), (first, _) in zip(inner, outer, strict=True))
