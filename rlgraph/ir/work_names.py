"""How a piece of work is called in every step of a run: what is measured, predicted and drawn of it has this name."""

from __future__ import annotations


def work_key(name: str, op: str) -> str:
    """Return the name of the work of a node: its operation and, where that is not in it, its name. After an update a
    model has a number in its name, `train actor@2`, which is left out."""
    return (op if name.startswith(op) else f"{op} {name}").partition("@")[0]
