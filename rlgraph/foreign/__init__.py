"""The user's Python: reward functions and environments, in processes of their own."""

from rlgraph.foreign.environments import (
    Environment,
    EnvironmentSpec,
    Episode,
    check_environment,
    open_environment,
)
from rlgraph.foreign.functions import FunctionSpec, RewardFunction, check_function, open_function
from rlgraph.foreign.worker import Ask, Away, Failure, Workers

__all__ = [
    "Ask",
    "Away",
    "Environment",
    "EnvironmentSpec",
    "Episode",
    "Failure",
    "FunctionSpec",
    "RewardFunction",
    "Workers",
    "check_environment",
    "check_function",
    "open_environment",
    "open_function",
]
