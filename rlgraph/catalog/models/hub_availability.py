"""Checks once whether the Hugging Face hub gives a model."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.catalog.models.configs import find_snapshot
from rlgraph.hub import SECONDS, silent_hub

VARIABLES: Mapping[str, str] = {
    "HF_HOME": "the folder in which models are stored",
    "HF_HUB_OFFLINE": "1: take what is stored there, and ask no hub",
    "HF_ENDPOINT": "another hub, such as a mirror",
    "HF_TOKEN": "who asks, for models that not everybody gets",
}
"""The environment variables that the hub's client reads."""


_GATED, _BUSY = "GatedRepo", 429
"""What the hub says of a model that its owner gives to some, and the status of one that is asked too often; from 500 on
it does not work."""


class NotReadable(LookupError):
    """A model of the hub is neither stored here nor given by the hub."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.message, self.hint = message, hint


def readable_source(source: str) -> str:
    """Return where a library should read a hub model: its name, or, if the hub does not give it, the cached folder.
    Raises NotReadable if it is not cached either. One request tells all that a library finds out by many."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # It exists there all the same.

    try:
        validate_repo_id(source)
    except HFValidationError:
        if source.endswith(".gguf"):
            raise NotReadable("a name of the hub or a folder is meant", f'a file is `gguf("{source}")`') from None
        hint = "a path begins in the folder of the program, or in that in which the command runs"
        raise NotReadable("there is no such folder, and it is no name of the hub, as OWNER/NAME is", hint) from None
    failure, hint = model_failure(source)
    if not failure:
        return source
    stored = find_snapshot(source)
    if stored is None:
        where = f"it is no folder, it is not stored in {constants.HF_HUB_CACHE!r}, and {failure}"
        raise NotReadable(where, hint or loading_hint(source))
    return str(stored)


def model_failure(source: str) -> tuple[str, str]:
    """Return why the hub does not give a model, and what to do, if that is not what always helps; empty texts if it
    gives it."""
    from huggingface_hub import constants, get_session, get_token

    if constants.is_offline_mode():
        return "no hub is asked (`HF_HUB_OFFLINE`)", ""
    page, token = f"{constants.ENDPOINT}/{source}", get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = get_session().head(f"{page}/resolve/main/config.json", timeout=SECONDS, headers=headers)
    except Exception as error:  # The HTTP library may be another one in the next version.
        return silent_hub(error), ""
    said, status = answer.headers.get("X-Error-Code", ""), answer.status_code
    if said == _GATED:
        ask = (
            f"ask for access on {page}, then `hf auth login`, or set `HF_TOKEN`: the token has to be of who has access"
        )
        return "the hub gives it to those alone whom its owner has given access", ask
    if said == "RepoNotFound" or status == 401:
        look = f"look at how it is written on {constants.ENDPOINT}; a private one needs `HF_TOKEN`, or `hf auth login`"
        return f"the hub {constants.ENDPOINT} has no model of that name, or a private one", look
    if status == _BUSY or status >= 500:
        return f"the hub {constants.ENDPOINT} does not work now: it answers {status}", ""
    return "", ""


def loading_hint(source: str) -> str:
    """Return the hint for a hub model that cannot be loaded."""
    store = f"give a folder, or store the model where there is a network, with `hf download {source}`"
    return f"{store}; {', '.join(f'`{name}` ({what})' for name, what in VARIABLES.items())} are read"
