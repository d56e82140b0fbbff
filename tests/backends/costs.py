"""Costs for tests in virtual time, of which each says what it is about."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.cost import Cost


class Free:
    """All that is not a model's work takes no time."""

    def host_work_cost(self, op: str, count: float) -> Cost:
        return Cost()

    def weight_sync_cost(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        return Cost()

    def row_transfer_cost(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        return Cost()

    def offload_round_trip_cost(self, model: str, group: str, operation: str, batches: Sequence[Batch]) -> Cost:
        return Cost()

    def request_cost(self, group: str, copies: int | None = None) -> Cost:
        return Cost()
