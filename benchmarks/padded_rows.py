"""Seconds in which verl's rows travel between its controller and its workers, which its phases include.

One process has all rows, padded to the longest prompt and answer that there may be. It writes each replica's part into
Ray's store, one after the other; each worker reads its part, and writes its answer; the controller reads the answers of
all workers, of which those of one replica have the same (`func_generator`, `DataProto.__getstate__` of verl 0.4). So it
takes as long however many devices there are, and longer with more ranks in a replica.
"""

from __future__ import annotations

from dataclasses import dataclass

PROMPT = 2048
"""Places of a padded prompt in verl's recipes of DAPO (`max_prompt_length`)."""

PLACE = {"logprobs": (24, 8, 24), "train": (24, 8, 36)}
"""Bytes of a phase's batch for each place of a row, and more for each of its prompt and of its answer: three whole
numbers of 8 bytes (ids, mask, positions); the prompt's ids; the answer's ids and mask, and four bytes each of its
scores and rewards. Training has old log-probabilities, advantages and returns, too (`RayDAPOTrainer.fit`)."""

BACK = {"logprobs": 8, "train": 0}
"""Bytes of the answer for each place of an answer: log-probabilities and entropies."""


@dataclass(frozen=True)
class Controller:
    """CPU seconds for each GB: medians of `python benchmarks/peers/verl_rows.py --rows 1024` on an AMD EPYC."""

    put: float = 2.5
    """The controller writes what goes out."""
    take: float = 1.2
    """A worker reads its part."""
    give: float = 2.4
    """A worker writes its answer."""
    get: float = 1.1
    """The controller reads a worker's answer."""
    join: float = 0.45
    """It joins the answers of one worker in each replica."""

    def seconds(self, phase: str, rows: int, answer: int, replicas: int, ranks: int) -> float:
        """Return the seconds of a phase. answer: places of a padded one. ranks: of a replica, each with an answer."""
        place, of_prompt, of_answer = PLACE[phase]
        out = rows * (place * (PROMPT + answer) + of_prompt * PROMPT + of_answer * answer) / 1e9
        back = rows * BACK[phase] * answer / 1e9
        workers = (self.take * out + self.give * back) / replicas
        return self.put * out + workers + (self.get * ranks + self.join) * back
