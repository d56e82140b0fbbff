"""This package calls the user's Python on rows, as reward functions or environments, in processes of its own."""

from rlgraph.user_code.agent_environments import Agent, AgentCall, EndedByUs
from rlgraph.user_code.environment_kinds import check_environment_declaration, open_environment
from rlgraph.user_code.environments import Environment, EnvironmentSpec, Episode, ToolCall
from rlgraph.user_code.function_declarations import FunctionSpec, check_function_declaration
from rlgraph.user_code.reward_functions import RewardFunction, open_reward_function
from rlgraph.user_code.worker import Ask, CodeFailure, RemoteWorker, Workers

__all__ = [
    "Agent",
    "AgentCall",
    "EndedByUs",
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
    "check_environment_declaration",
    "check_function_declaration",
    "open_environment",
    "open_reward_function",
]
