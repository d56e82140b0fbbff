"""rlgraph compiles RLHF algorithms: it turns a program that reads like its paper's pseudo-code into a run.

`rlgraph.__all__` is the whole public API. Its names are imported when they are first used: `import rlgraph` loads
neither torch nor the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlgraph.moved import register_old_names

if TYPE_CHECKING:
    from rlgraph.api import check, compile, functions, load_plan
    from rlgraph.api.compiled import Compiled
    from rlgraph.api.target import workload
    from rlgraph.errors import Diagnostic, ProgramError, RlgraphError, RunError
    from rlgraph.explain.simulate import simulate
    from rlgraph.runs.run import Interrupted, Run
    from rlgraph.runs.trace_check import check_trace

register_old_names()

__version__ = "0.1.0"

_HOMES = {
    "check": "api",
    "check_trace": "runs.trace_check",
    "compile": "api",
    "functions": "api",
    "load_plan": "api",
    "simulate": "explain.simulate",
    "workload": "api.target",
    "Compiled": "api.compiled",
    "Run": "runs.run",
    "Interrupted": "runs.run",
    "Diagnostic": "errors",
    "ProgramError": "errors",
    "RlgraphError": "errors",
    "RunError": "errors",
}

__all__ = [
    "Compiled",
    "Diagnostic",
    "Interrupted",
    "ProgramError",
    "RlgraphError",
    "Run",
    "RunError",
    "__version__",
    "check",
    "check_trace",
    "compile",
    "functions",
    "load_plan",
    "simulate",
    "workload",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'rlgraph' has no attribute {name!r}")
    return getattr(import_module(f"rlgraph.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Register the cell magic `%%rlf`; IPython calls this for `%load_ext rlgraph`."""
    from rlgraph.api.notebook import register_magic

    register_magic(shell)
