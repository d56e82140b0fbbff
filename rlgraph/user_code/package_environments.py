"""Environments that packages bring, by their names: `env game = textarena("GuessTheNumber-v0")`.

`package_episodes.py` has what is done with each package, in a process of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.user_code.class_environments import OPTIONS, environment_of_objects
from rlgraph.user_code.code_diagnostics import CodeTarget, shorten
from rlgraph.user_code.environments import Environment, EnvironmentSpec
from rlgraph.user_code.files import SearchFolders, module_search_path
from rlgraph.user_code.function_declarations import DEFAULT_LIMIT_S
from rlgraph.user_code.spec import flag_option, int_option, require_package, seconds_option, single_text_argument
from rlgraph.user_code.worker import IMPORT_LIMIT_S, CodeFailure, CodeSource, Raised, Workers

NOT_MADE = "E0738"
_FILE = Path(__file__).with_name("package_episodes.py")


@dataclass(frozen=True, slots=True)
class PackagedKind:
    """How environments of one package are declared, by the word that is its name, too."""

    episode: str
    """The class in `package_episodes.py`."""
    argument: str
    """What the declaration names."""
    example: str


PACKAGED_KINDS = {
    "textarena": PackagedKind("TextArenaGame", "the name of a game", "GuessTheNumber-v0"),
    "gymnasium": PackagedKind("GymnasiumText", "the name of an environment", "my_module:Words-v0"),
    "openenv": PackagedKind("OpenEnvSession", "the address of a server", "http://127.0.0.1:8000"),
}


def check_packaged_declaration(spec: EnvironmentSpec) -> None:
    """Raise an error for what is wrong with a declaration, as far as can be seen without the package."""
    kind = PACKAGED_KINDS[spec.kind]
    single_text_argument(spec, kind.argument, f'{spec.kind}("{kind.example}")')
    seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    int_option(spec, "workers", 1)
    flag_option(spec, "trial", True)


def packaged_declaration_faults(spec: EnvironmentSpec, folders: SearchFolders) -> list[Diagnostic]:
    """Return nothing: what else is wrong, the package says when it makes the environment."""
    return []


def open_packaged_environment(spec: EnvironmentSpec, folders: SearchFolders, pool: Workers) -> Environment:
    """Return the environment of a package; one is made to see that there is such an environment. Raises
    `ProgramError`."""
    kind = PACKAGED_KINDS[spec.kind]
    require_package(spec.kind, spec.span)
    # As a module: so the user's own modules are found, in which environments of Gymnasium are registered.
    code = CodeSource(_FILE, f"rlgraph.user_code.{_FILE.stem}", tuple(module_search_path(folders)))
    target = CodeTarget(spec.kind, code, kind.episode, spec.span, ours=True)
    processes = tuple(pool.worker_for(target.code, slot) for slot in range(int_option(spec, "workers", 1) or 1))
    constants: dict[str, Any] = {name: value for name, value in spec.options.items() if name not in OPTIONS}
    constants["name"] = spec.args[0]
    limit_s = seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    key = processes[0].new_object_key()
    try:
        processes[0].request("make_environment", key, kind.episode, constants, limit_s=IMPORT_LIMIT_S)
        processes[0].request("close", key, limit_s=IMPORT_LIMIT_S)
    except CodeFailure as failure:
        raise ProgramError(_not_made(spec, kind, failure)) from None
    return environment_of_objects(target, constants, limit_s, processes, flag_option(spec, "trial", True))


def _not_made(spec: EnvironmentSpec, kind: PackagedKind, failure: CodeFailure) -> Diagnostic:
    """Return the error for an environment that could not be made: what our own classes refuse is said as it is."""
    hint = f'as in `{spec.kind}("{kind.example}")`'
    if not isinstance(failure, Raised):
        return Diagnostic(NOT_MADE, f"`{spec.kind}` did not make '{spec.args[0]}': {failure.in_words}", spec.span, hint)
    why = shorten(failure.message, 300)
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", why)
    if failure.type == "TypeError" and unexpected:
        option = unexpected[1]
        message = f"'{option}' is neither an option of `{spec.kind}` nor one of '{spec.args[0]}'"
        return Diagnostic(NOT_MADE, message, spec.argument_span(option), "leave it out")
    if failure.type == "ModuleNotFoundError":
        return Diagnostic(NOT_MADE, why, spec.span, "install it where rlgraph runs")
    message = why if failure.type == "ValueError" else f"'{spec.args[0]}' raised {failure.type}: {why}"
    return Diagnostic(NOT_MADE, message, spec.argument_span(0), hint)
