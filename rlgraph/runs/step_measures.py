"""What is measured of a step beside its seconds: who waited for whom, what came in, and how much memory was used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlgraph.ir.plan import HOST

CONTROLLER = "the controller"
"""Whom a pool waits for when no other one has worked since it became idle."""
THIS_PROCESS = "this process"
"""What the process of the local backend is called among those whose memory is measured."""
PEAK_GROWTH = 1.01
"""A peak of memory is told again when it has grown by this factor: it only grows, and a run has thousands of steps."""


@dataclass(frozen=True)
class StepMeasures:
    """What was measured of a step."""

    work_s: Mapping[str, float] = field(default_factory=dict)
    """The seconds of each piece of work."""
    received_bytes: Mapping[str, int] = field(default_factory=dict)
    """For each piece of work the bytes of rows that came from other processes for it."""
    weights_sent: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Seconds and bytes of weights, by model and the group that got them: `actor -> play`."""
    waits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For each pool the seconds that it was idle, by the work that ended last before it went on: `rollout (play)`."""
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each pool the peak bytes of those of its processes whose peak has grown; of a device where they have one."""


class StepMeter:
    """Collects what is measured until a step is over. Its caller has a lock."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[str, str], int] = {}
        """The peak that was last told of each process."""
        self._at_work: dict[str, int] = {}
        """How many pieces of work each pool does now."""
        self._idle_since_s: dict[str, float] = {}
        self._last_done: dict[str, tuple[float, str]] = {}
        """For each pool when it last ended a piece of work, and which."""
        self._forget_step()

    def _forget_step(self) -> None:
        self._work_s: dict[str, float] = {}
        self._received: dict[str, int] = {}
        self._sent: dict[str, tuple[float, int]] = {}
        self._waits: dict[str, dict[str, float]] = {}
        self._memory: dict[str, dict[str, int]] = {}

    @property
    def has_one_process(self) -> bool:
        """Whether work is done in the process of the controller."""
        return "" in self._last_done

    def take(self) -> StepMeasures:
        """Return what was collected since the last call."""
        taken = StepMeasures(self._work_s, self._received, self._sent, self._waits, self._memory)
        self._forget_step()
        return taken

    def work_started(self, pool: str, now_s: float) -> None:
        """Note that a pool begins a piece of work; if it was idle, whom it has waited for."""
        count = self._at_work.get(pool, 0)
        self._at_work[pool] = count + 1
        since_s = self._idle_since_s.pop(pool, None)
        if since_s is None or count or not pool or pool == HOST:
            return
        others = [(time_s, name, other) for other, (time_s, name) in self._last_done.items() if other != pool]
        last_s, name, other = max(others, default=(0.0, "", ""))
        whom = f"{name} ({other})" if last_s > since_s else CONTROLLER
        waited = self._waits.setdefault(pool, {})
        waited[whom] = waited.get(whom, 0.0) + now_s - since_s

    def work_done(self, name: str, seconds: float, pool: str, now_s: float) -> None:
        """Note that a pool has done a piece of work. seconds: without those of the work inside of it."""
        self._work_s[name] = self._work_s.get(name, 0.0) + seconds
        self._last_done[pool] = now_s, name
        self._at_work[pool] = left = max(0, self._at_work.get(pool, 0) - 1)
        if not left:
            self._idle_since_s[pool] = now_s

    def rows_received(self, name: str, size_bytes: int) -> None:
        """Note that rows came from other processes for a piece of work."""
        if size_bytes:
            self._received[name] = self._received.get(name, 0) + size_bytes

    def weights_sent(self, model: str, destination: str, seconds: float, sent_bytes: int) -> None:
        """Note that a model's weights went to a group."""
        key = f"{model} -> {destination}"
        before_s, before = self._sent.get(key, (0.0, 0))
        self._sent[key] = before_s + seconds, before + sent_bytes

    def memory_peaks(self, pool: str, peaks: Mapping[str, int]) -> None:
        """Note how much memory processes have used at most since they began; 0 for one that does not say."""
        for process, peak_bytes in peaks.items():
            if peak_bytes > PEAK_GROWTH * self._peaks.get((pool, process), 0):
                self._peaks[pool, process] = peak_bytes
                self._memory.setdefault(pool, {})[process] = peak_bytes
