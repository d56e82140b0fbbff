"""A reward server as a reward function, run like a user's file in a process of its own.

It is asked by `POST` with a JSON object: a list for each of `prompts` and `completions`, and for each column of the
rows. It answers with a list that has an entry for each row, or with an object in which this is `scores` or `rewards`:
numbers, null where it abstains, or objects with the numbers that the declaration names.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

FIRST_WAIT_S = 0.5
"""How long it waits before it asks again; each time twice as long."""
LONGEST_WAIT_S = 10.0
_LISTS = ("scores", "rewards")


class NoAnswer(Exception):
    """The server gave no answer that can be used."""


def limit_with_retries_s(limit_s: float, retries: int) -> float:
    """Return how long asking takes at most, with all that is tried again, in seconds."""
    return limit_s * (retries + 1) + sum(map(_wait_s, range(retries)))


def _wait_s(asked_again: int) -> float:
    """Return how long it waits before it asks again, by how often it has."""
    return min(FIRST_WAIT_S * 2.0**asked_again, LONGEST_WAIT_S)


def http(prompts: list[Any], completions: list[Any], rlgraph_server: dict[str, Any], **columns: Any) -> Any:
    """Return what a server answers for these rows.

    rlgraph_server: its `url`; seconds for an answer, `limit_s`; the environment variable whose value is sent as a
    bearer token, `token`. Where there is no answer, or one that says that the server is at fault or busy, it is asked
    again, `retries` times. Raises NoAnswer.
    """
    columns.pop("completion_ids", None)
    url, retries, token = rlgraph_server["url"], rlgraph_server["retries"], rlgraph_server["token"]
    body = json.dumps({"prompts": prompts, "completions": completions, **columns}, default=str).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token is not None:
        if token not in os.environ:
            raise NoAnswer(f"the environment has no variable {token}, which `token` names")
        headers["Authorization"] = f"Bearer {os.environ[token]}"
    request = urllib.request.Request(url, body, headers, method="POST")
    for tried in range(retries + 1):
        if tried:
            time.sleep(_wait_s(tried - 1))
        problem, final = "", False
        try:
            with urllib.request.urlopen(request, timeout=rlgraph_server["limit_s"]) as answer:
                return _rows(url, answer.read())
        except urllib.error.HTTPError as error:
            text = " ".join(error.read(300).decode(errors="replace").split())
            problem = f"{url} answered {error.code} {error.reason}{f': {text}' if text else ''}"
            final = error.code < 500 and error.code not in (408, 425, 429)
        except OSError as error:  # urllib's own errors, refused and broken connections, and timeouts
            reason = getattr(error, "reason", error)
            problem = f"{url} did not answer: {reason or type(error).__name__}"
        if final:
            raise NoAnswer(problem)
    times = f", asked {retries + 1} times" if retries else ""
    raise NoAnswer(f"{problem}{times}")


def _rows(url: str, answer: bytes) -> Any:
    """Return the entries of the rows in an answer. Raises NoAnswer."""
    try:
        value = json.loads(answer)
    except ValueError:
        text = " ".join(answer[:100].decode(errors="replace").split())
        raise NoAnswer(f"{url} answered with something that is no JSON: {text!r}") from None
    if isinstance(value, dict):
        name = next((name for name in _LISTS if name in value), None)
        if name is None:
            has = ", ".join(list(value)[:8]) or "nothing"
            raise NoAnswer(f"{url} answered with an object without `scores`: it has {has}")
        return value[name]
    return value
