"""Finds the adapters that an engine cannot hold."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.backends.enginespec.registry import embedded_engine
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import Diagnostic
from rlgraph.ir.schedule import PlacementLine

_WIDE = '`dtype="float32"`'


def adapter_errors(
    model: str, engine: str, shape: Shape, dtype: str, kind: DeviceKind, pin: PlacementLine
) -> Iterator[Diagnostic]:
    """Yield the errors for adapters that an engine cannot hold as a schedule says, or not at all."""
    spec = spec_of(engine)
    ways = spec.adapter_ways(shape, dtype, kind)
    if pin.adapters:
        hint = "leave `adapters` out"
        if shape.adapters and pin.adapters in spec.adapter_dtypes:
            hint = f"write {' or '.join([*(f'`adapters={way}`' for way in ways), f'{_WIDE} of the model'])}"
        for text in spec.adapter_problems(pin.adapters, shape, dtype, kind):
            yield Diagnostic("E0912", f"`{model}`: {engine} {text}", pin.option_span("adapters"), hint)
    elif shape.adapters and spec.adapters and not ways:
        why = [text for way in spec.adapters for text in spec.adapter_problems(way, shape, dtype, kind)]
        other = f"`engine={embedded_engine().name}`"
        hint = f"write {_WIDE} of the model, or {other}" if spec.adapter_dtypes else f"write {other}"
        yield Diagnostic("E0912", f"`{model}`: {engine} {', and '.join(why)}", pin.option_span("engine"), hint)
