"""How many texts were read so far, over all runs: which numbers of which kind, so that none is counted twice."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Read:
    """Texts of a kind with numbers from `first` on, to `end` without it."""

    first: int
    end: int
    right: int
    """How many of them were right."""


Counts = dict[str, list[Read]]
"""By kind, in the order of their numbers."""


def add(path: Path, new: Mapping[str, Read]) -> Counts:
    """All that were read when these are, too. Another run may write the same file."""
    path.touch()
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        counts = _parsed(file.read())
        for kind, read in new.items():
            counts[kind] = _with(counts.get(kind, []), read)
        file.seek(0)
        file.truncate()
        json.dump({kind: [[each.first, each.end, each.right] for each in them] for kind, them in counts.items()}, file)
    return counts


def texts(reads: list[Read]) -> int:
    """How many there are."""
    return sum(each.end - each.first for each in reads)


def _parsed(text: str) -> Counts:
    return {kind: [Read(*each) for each in them] for kind, them in json.loads(text or "{}").items()}


def _with(known: list[Read], new: Read) -> list[Read]:
    """What was read before is not counted again, nor is what was read with it: it cannot be told how much was right."""
    if new.first == new.end or any(each.first < new.end and new.first < each.end for each in known):
        return known
    found: list[Read] = []
    for each in sorted([*known, new], key=lambda read: read.first):
        if found and found[-1].end == each.first:
            each = Read(found[-1].first, each.end, found.pop().right + each.right)
        found.append(each)
    return found
