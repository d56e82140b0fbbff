"""The signatures of what a program takes from outside: data, functions, environments, and buffers of earlier rows.

The checker, the language reference and the suggestions in diagnostics all read these tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.dsl.signatures import Signature, signature_table
from rlgraph.ir.attributes import REQUIRED, Attribute
from rlgraph.ir.types import DType
from rlgraph.ops.records import UNITS

OVERLONG = ("error", "drop", "cut")

_BATCH = (
    Attribute("batch", "int", None, 1, None, "rows read at a time; all of them if it is left out"),
    Attribute("shuffle", "bool", None, doc="each pass over the data in another order: the default, but for generators"),
    Attribute("limit", "int", None, 1, None, "use this many rows only"),
    Attribute("max_prompt", "int", None, 1, None, "tokens of a prompt, with what the chat template adds; at most"),
    Attribute(
        "overlong",
        "word",
        None,
        doc="rows whose prompt is longer than `max_prompt`, or than the model takes: an error before the first step "
        "(`error`, the default), or they are left out (`drop`), or lose their beginning (`cut`)",
        names=lambda: OVERLONG,
    ),
    Attribute("defaults", "columns", None, doc='values for rows that lack a column: `columns(answer="", level=0)`'),
)
_CALLED = (
    Attribute("timeout", "float", None, 0.0, None, "seconds for a call"),
    Attribute("workers", "int", None, 1, 256, "processes that the calls are spread over"),
)


def _over(default: str, *names: str) -> Attribute:
    """Return the option that says on which rows a row's number may depend."""
    return Attribute(
        "over",
        "word",
        default,
        doc="the rows on which the number of a row may depend: itself, those of its prompt, or all of the batch",
        names=lambda: names,
    )


_STREAMING = Attribute("streaming", "bool", None, doc="rows come one after the other, and are stored nowhere")

DATA = signature_table(
    Signature(
        "files",
        (Attribute("paths", "texts"),),
        (
            *_BATCH,
            Attribute("split", "text", None, doc="of a folder or of what `*` matches: the files whose names say so"),
            Attribute("field", "text", None, doc="the name under which a JSON object has its list of rows"),
            _STREAMING,
        ),
        "Files, folders, what `*` matches, or a list of these: the endings say of which format.",
    ),
    Signature("jsonl", (Attribute("path", "text"),), _BATCH, "A file with a JSON object on each line."),
    Signature("parquet", (Attribute("path", "text"),), _BATCH, "A Parquet file (extra `datasets`)."),
    Signature(
        "hub",
        (Attribute("name", "text"),),
        (*_BATCH, Attribute("split", "text", None), Attribute("config", "text", None), _STREAMING),
        "A data set of the Hugging Face hub (extra `datasets`).",
    ),
    Signature(
        "python",
        (Attribute("function", "text"),),
        (*_BATCH, Attribute("timeout", "float", None, 0.0)),
        "Rows from a Python generator or list: `file.py:function`; other options are its arguments.",
        open=True,
    ),
    Signature(
        "reasoning_gym",
        (Attribute("task", "text"),),
        (
            *_BATCH,
            Attribute("size", "int", None, 1),
            Attribute("seed", "int", None, 0),
            Attribute("start", "int", None, 0),
        ),
        "A procedural task of reasoning_gym (extra `gym`); other options are the task's own.",
        open=True,
    ),
)

DATA["mix"] = Signature(
    "mix",
    (Attribute("data", "any"),),
    (
        *(option for option in _BATCH if option.name != "limit"),
        Attribute("weights", "any", None, doc="the share of each source, together 1; as many rows of each as it has"),
    ),
    "The rows of two or more sources, of each its share: `mix(a, b, weights=[0.8, 0.2], batch=64)`.",
    of_its_kind=True,
)

ALL_BRANCHES = "all"
"""All lines of episodes are kept."""
BRANCHES = ("refuse", "skip", ALL_BRANCHES)
OUTCOMES = ("stop", "skip")
_RESULTS = (
    Attribute(
        "none",
        "outcome",
        None,
        doc="where it returns None the run stops (the default), the row is without a number, or has this one",
        names=lambda: OUTCOMES,
    ),
    Attribute(
        "failed",
        "outcome",
        None,
        doc="where a call fails the run stops (the default), its rows are without a number, or have this one",
        names=lambda: OUTCOMES,
    ),
    Attribute("trial", "bool", None, doc="it is called on a made-up answer before the first step: the default"),
)
_EPISODES = (
    *_CALLED,
    Attribute("trial", "bool", None, doc="it plays an episode of one empty action before the first step: the default"),
)
_NAMED = (
    Attribute("returns", "texts", None, doc="names of the numbers that it returns for a row, the first one its value"),
    Attribute("texts", "texts", None, doc="names of the texts that it returns for a row, after its numbers"),
)

FUNCS = signature_table(
    Signature(
        "python",
        (Attribute("function", "text"),),
        (*_CALLED, Attribute("batch", "int", None, 1, None, "rows a call"), _over("group", *UNITS), *_RESULTS, *_NAMED),
        "`file.py:function`, called as f(prompts, completions, **columns) -> a number for each row.",
        open=True,
    ),
    Signature(
        "reasoning_gym",
        (),
        (*_CALLED, _over("row", "row"), *_RESULTS),
        "The verifier of the reasoning_gym task that the rows came from (extra `gym`).",
    ),
    Signature(
        "math_verify",
        (),
        (*_CALLED, Attribute("batch", "int", None, 1, None, "rows a call"), _over("row", "row"), *_RESULTS),
        "1 where the last mathematics of a completion, in LaTeX or plain, equals its row's `answer` (extra `math`).",
    ),
    Signature(
        "http",
        (Attribute("url", "text"),),
        (
            *_CALLED,
            Attribute("batch", "int", None, 1, None, "rows a call"),
            Attribute("retries", "int", None, 0, 100, "times that a server which does not answer is asked again"),
            Attribute("token", "text", None, doc="the environment variable with its bearer token"),
            _over("row", *UNITS),
            *_RESULTS,
            *_NAMED,
        ),
        "A server that is sent the rows as JSON and answers with their numbers.",
    ),
)

ENVS = signature_table(
    Signature(
        "python",
        (Attribute("class", "text"),),
        _EPISODES,
        "`file.py:Class` with reset(row), step(action) and close().",
        open=True,
    ),
    Signature(
        "tools",
        (Attribute("function", "text"),),
        _CALLED,
        "Functions, each `file.py:function`, that the model calls in its answers until one has no call.",
        repeats=True,
    ),
    Signature(
        "agent",
        (Attribute("function", "text"),),
        (
            Attribute("timeout", "float", None, 0.0, None, "seconds for an episode, without those of the model"),
            Attribute("workers", "int", None, 1, 256, "processes that play episodes beside each other"),
            Attribute("failed", "float", None, doc="the reward of an episode in which it fails"),
            Attribute(
                "branches",
                "word",
                None,
                doc="a request that does not go on from the last one: `refuse` it; answer it, and learn from the last "
                "line alone (`skip`), or keep `all` lines, as `episode.branch`",
                names=lambda: BRANCHES,
            ),
            _NAMED[0],
        ),
        "`file.py:function`, which asks the model itself, as a client of OpenAI's API.",
        open=True,
    ),
    Signature(
        "textarena",
        (Attribute("game", "text"),),
        _EPISODES,
        "TextArena's, for one player or [several](#several-players) (extra `textarena`); other options are its own.",
        open=True,
    ),
    Signature(
        "gymnasium",
        (Attribute("name", "text"),),
        _EPISODES,
        "An environment of Gymnasium that says texts (extra `gymnasium`); other options are its own.",
        open=True,
    ),
    Signature(
        "openenv",
        (Attribute("address", "text"),),
        (
            *_EPISODES,
            Attribute("action", "text", None, doc="the field of an action that takes the model's text"),
            Attribute("observation", "text", None, doc="the field of an observation that the model is shown"),
        ),
        "A server of OpenEnv (extra `openenv`): a session for each episode.",
    ),
)

ENV_COLUMNS: Mapping[str, tuple[tuple[str, DType], ...]] = {
    "agent": (("requests", "int"), ("refused", "int"), ("died", "bool"), ("stalled", "bool")),
}
"""The columns that episodes of a kind of environment have besides, by row."""

BUFFERS = signature_table(
    Signature(
        "fifo",
        (),
        (
            Attribute("capacity", "int", REQUIRED, 1, None, "rows; the oldest leave first"),
            Attribute("key", "text", None, doc="the column by which rows are found: `NAME[prompts.id]`"),
            Attribute("last", "int", None, 1, None, "rows of each key at most; its oldest leave first"),
        ),
        "Rows of earlier steps, the newest `capacity` of them.",
    ),
)

OUTSIDE = {"data": DATA, "func": FUNCS, "env": ENVS, "buffer": BUFFERS}
