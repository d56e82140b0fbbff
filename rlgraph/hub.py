"""Asks once, with a timeout of seconds, whether the Hugging Face hub answers. Libraries ask it for each file, retry six
times, and print that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SECONDS = 5.0
"""The timeout of a request."""


def hub_failure() -> str:
    """Return why the hub does not answer; empty if it answers, whatever the status."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return "no hub is asked (`HF_HUB_OFFLINE`)"
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # The HTTP library may be another one in the next version.
        return silent_hub(error)
    return ""


def silent_hub(error: Exception) -> str:
    """Return what an error of a request says of the hub."""
    from huggingface_hub import constants

    return f"the hub {constants.ENDPOINT} does not answer: {str(error) or type(error).__name__}"


@contextmanager
def stored_alone(failure: str) -> Iterator[None]:
    """Have libraries take what is stored, and not ask, while the context lasts, if the hub does not answer. failure: as
    `hub_failure` says."""
    from huggingface_hub import constants

    # Both read the environment variable when they are imported.
    asked: list[Any] = [constants, getattr(sys.modules.get("datasets"), "config", None)]
    settings = [each for each in asked if each is not None]
    before = [each.HF_HUB_OFFLINE for each in settings]
    try:
        for each in settings:
            each.HF_HUB_OFFLINE = each.HF_HUB_OFFLINE or bool(failure)
        yield
    finally:
        for each, was in zip(settings, before, strict=True):
            each.HF_HUB_OFFLINE = was
