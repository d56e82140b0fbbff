"""Checks once, with a timeout of seconds, whether the Hugging Face hub answers. Libraries ask it for each file of a
model, retry six times, and print that."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.catalog.models.configs import find_snapshot

SECONDS = 5.0
"""The timeout of the request."""
VARIABLES: Mapping[str, str] = {
    "HF_HOME": "the folder in which models are stored",
    "HF_HUB_OFFLINE": "1: take what is stored there, and ask no hub",
    "HF_ENDPOINT": "another hub, such as a mirror",
    "HF_TOKEN": "who asks, for models that not everybody gets",
}
"""The environment variables that the hub's client reads."""


def readable_source(source: str) -> str:
    """Return where a library should read a hub model: its name, or, if the hub does not answer, the cached folder.
    Raises LookupError if it is not cached either."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # It exists there all the same.

    try:
        validate_repo_id(source)
    except HFValidationError:
        # It is no name on the hub; the library that reads it says so without a request.
        return source
    failure = hub_failure()
    if not failure:
        return source
    stored = find_snapshot(source)
    if stored is None:
        raise LookupError(f"it is no folder, it is not stored in {constants.HF_HUB_CACHE!r}, and {failure}")
    return str(stored)


def hub_failure() -> str:
    """Return why the hub does not answer; empty if it answers, whatever the status."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return "no hub is asked (`HF_HUB_OFFLINE`)"
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # The HTTP library may be another one in the next version.
        return f"the hub {constants.ENDPOINT} does not answer: {str(error) or type(error).__name__}"
    return ""


def loading_hint(source: str) -> str:
    """Return the hint for a hub model that cannot be loaded."""
    store = f"give a folder, or store the model where there is a network, with `hf download {source}`"
    return f"{store}; {', '.join(f'`{name}` ({what})' for name, what in VARIABLES.items())} are read"
