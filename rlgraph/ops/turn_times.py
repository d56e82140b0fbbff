"""How long those who play episodes turn by turn wait for environments that are slow: the runtime keeps to it, and the
cost model counts on it."""

from __future__ import annotations

QUIET_S = 2.0
"""How long no environment answers until those that have answered act without the others, at least: quick ones are
sampled together."""
QUIET_SHARE = 0.1
"""How long that is as a share of the time that the last actions took to sample."""
MOST_AT_ONCE = 256
"""The most episodes whose actions an engine is asked for at the same time, one by one."""
