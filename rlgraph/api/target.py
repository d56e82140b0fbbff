"""How long rows are, for `rlgraph.compile(workload=)` and `rlgraph.simulate(workload=)`."""

from rlgraph.compilation.target import workload

__all__ = ["workload"]
