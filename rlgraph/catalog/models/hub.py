"""The Hugging Face hub: whether it answers is asked once, and for seconds. Libraries ask it for each file of a model,
six times each, and say so on the screen."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.catalog.models.configs import snapshot

SECONDS = 5.0
"""The longest wait for its answer."""
VARIABLES: Mapping[str, str] = {
    "HF_HOME": "the folder in which models are stored",
    "HF_HUB_OFFLINE": "1: take what is stored there, and ask no hub",
    "HF_ENDPOINT": "another hub, such as a mirror",
    "HF_TOKEN": "who asks, for models that not everybody gets",
}
"""What its client reads from the environment."""


def place(source: str) -> str:
    """Where a library is to read a model of the hub: by its name, or if the hub does not answer in the folder in which
    it is stored. Raises LookupError where it is not stored here either."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # it is named there all the same

    try:
        validate_repo_id(source)
    except HFValidationError:
        # It is no name on the hub; who reads it says so, and asks nobody.
        return source
    why = unanswered()
    if not why:
        return source
    stored = snapshot(source)
    if stored is None:
        raise LookupError(f"it is no folder, it is not stored in {constants.HF_HUB_CACHE!r}, and {why}")
    return str(stored)


def unanswered() -> str:
    """Why the hub says nothing; empty: it answers, whatever it says."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return "no hub is asked (`HF_HUB_OFFLINE`)"
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # of the library below, which may be another one in the next version
        return f"the hub {constants.ENDPOINT} does not answer: {str(error) or type(error).__name__}"
    return ""


def hint(source: str) -> str:
    """What to do where a model of the hub cannot be loaded."""
    store = f"give a folder, or store the model where there is a network, with `hf download {source}`"
    return f"{store}; {', '.join(f'`{name}` ({what})' for name, what in VARIABLES.items())} are read"
