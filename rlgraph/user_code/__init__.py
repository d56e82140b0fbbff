"""This package calls the user's Python on rows, as reward functions or environments, in processes of its own."""

from rlgraph.user_code.declared import FunctionSpec, check_function
from rlgraph.user_code.environment_kinds import check_environment, open_environment
from rlgraph.user_code.environments import Environment, EnvironmentSpec, Episode, ToolCall
from rlgraph.user_code.functions import RewardFunction, open_function
from rlgraph.user_code.worker import Ask, CodeFailure, RemoteWorker, Workers

__all__ = [
    "Ask",
    "RemoteWorker",
    "Environment",
    "EnvironmentSpec",
    "Episode",
    "CodeFailure",
    "FunctionSpec",
    "RewardFunction",
    "ToolCall",
    "Workers",
    "check_environment",
    "check_function",
    "open_environment",
    "open_function",
]
