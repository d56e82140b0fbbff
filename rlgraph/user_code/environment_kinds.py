"""The kinds of environments: what an `env` declaration may call, how it is checked and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlgraph.errors import Diagnostic, ProgramError, did_you_mean
from rlgraph.user_code import agent_environments, class_environments, package_environments, tool_environments
from rlgraph.user_code.environments import Environment, EnvironmentSpec
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import BAD_ARGUMENT
from rlgraph.user_code.worker import Workers


@dataclass(frozen=True, slots=True)
class EnvironmentKind:
    """What is done with the declarations of one form."""

    check: Callable[[EnvironmentSpec], None]
    """Raises ProgramError for what is wrong, as far as can be seen without any file."""
    faults: Callable[[EnvironmentSpec, SearchFolders], list[Diagnostic]]
    """Returns what is wrong, as far as can be seen without running the user's Python."""
    open: Callable[[EnvironmentSpec, SearchFolders, Workers], Environment]
    """Loads the user's file. Raises ProgramError."""


KINDS = {
    "python": EnvironmentKind(
        class_environments.check_class_declaration,
        class_environments.class_declaration_faults,
        class_environments.open_class_environment,
    ),
    "tools": EnvironmentKind(
        tool_environments.check_tools_declaration,
        tool_environments.tools_declaration_faults,
        tool_environments.open_tool_environment,
    ),
    "agent": EnvironmentKind(agent_environments.check, agent_environments.faults, agent_environments.open_agent),
    **dict.fromkeys(
        package_environments.PACKAGED_KINDS,
        EnvironmentKind(
            package_environments.check_packaged_declaration,
            package_environments.packaged_declaration_faults,
            package_environments.open_packaged_environment,
        ),
    ),
}


def check_environment_declaration(spec: EnvironmentSpec) -> None:
    """Raise an error for what is wrong with an `env` declaration, as far as can be seen without any file."""
    _kind(spec).check(spec)


def environment_declaration_faults(spec: EnvironmentSpec, folders: SearchFolders) -> list[Diagnostic]:
    """Return what is wrong with an `env` declaration, without running or importing the user's Python."""
    try:
        check_environment_declaration(spec)
    except ProgramError as error:
        return [*error.diagnostics]
    return _kind(spec).faults(spec, folders)


def open_environment(spec: EnvironmentSpec, folders: SearchFolders, workers: Workers | None = None) -> Environment:
    """Return the environment that a program declares. This loads the user's file, so only a run may do it.

    With the same `workers` as a function, it shares the module of its file. Raises `ProgramError`.
    """
    check_environment_declaration(spec)
    return _kind(spec).open(spec, folders, workers or Workers())


def _kind(spec: EnvironmentSpec) -> EnvironmentKind:
    if spec.kind not in KINDS:
        message = f"there are no environments of kind '{spec.kind}'"
        hint = did_you_mean(spec.kind, KINDS) or 'as in `python("envs.py:Shell")`'
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.span, hint))
    return KINDS[spec.kind]
