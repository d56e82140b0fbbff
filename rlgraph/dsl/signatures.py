"""What every built-in call and statement takes: the names, kinds, ranges and defaults of its options.

The checker, the language reference and the suggestions in diagnostics all read these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlgraph.ir.graph import Constant

Kind = Literal["int", "float", "bool", "text", "texts", "rate", "source", "any"]
"""`rate`: a number or a schedule (`cosine(...)`); `source`: a path, a hub name or `random(...)`."""


class Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()


@dataclass(frozen=True, slots=True)
class Opt:
    name: str
    kind: Kind
    default: Constant | Required = REQUIRED
    low: float | None = None
    high: float | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    name: str
    args: tuple[Opt, ...] = ()
    """Given by place."""
    options: tuple[Opt, ...] = ()
    """Given by name."""
    doc: str = ""
    open: bool = False
    """Other options are allowed too and handed on: those of a task, a file format, a configuration."""


def _table(*signatures: Signature) -> dict[str, Signature]:
    return {signature.name: signature for signature in signatures}


_SAMPLING = (
    Opt("n", "int", 1, 1, 65536, "samples for each row; above 1 they are a new axis inside it"),
    Opt("temperature", "float", 1.0, 0.0, 100.0, "0 takes the likeliest token"),
    Opt("top_p", "float", 1.0, 1e-6, 1.0, "draw from the likeliest tokens that together have this probability"),
    Opt("top_k", "int", 0, 0, None, "draw from this many of the likeliest tokens; 0: from all"),
)

METHODS: dict[str, dict[str, Signature]] = {
    "causal_lm": _table(
        Signature(
            "generate",
            options=(
                *_SAMPLING,
                Opt("max_tokens", "int", REQUIRED, 0, None, "tokens of an answer at most, its end included"),
                Opt("min_tokens", "int", 0, 0, None, "tokens before an answer may end"),
                Opt("stop", "texts", (), doc="an answer ends with any of these tokens"),
            ),
            doc="Answers that the model samples to the rows of a table (its column `prompt`), or to a text column.",
        ),
        Signature(
            "interact",
            options=(
                *_SAMPLING,
                Opt("max_turns", "int", REQUIRED, 1, None, "times the model may act"),
                Opt("max_tokens", "int", REQUIRED, 1, None, "tokens of an episode at most, the environment's included"),
            ),
            doc="Episodes with an environment: the model acts, the environment answers. Its tokens carry no loss.",
        ),
        Signature(
            "logprobs",
            options=(Opt("temperature", "float", None, 1e-6, 100.0, "that at which the rows were drawn"),),
            doc="Log-probability of each token that carries loss.",
        ),
        Signature(
            "entropy",
            options=(Opt("temperature", "float", None, 1e-6, 100.0, "that at which the rows were drawn"),),
            doc="Entropy in nats of the distribution that each token was drawn from.",
        ),
    ),
    "value_lm": _table(Signature("values", doc="Value of the state before each token that carries loss.")),
    "reward_lm": _table(Signature("score", doc="Score of each row, read at its last token.")),
}

_MODEL = (
    Opt(
        "dtype",
        "text",
        None,
        doc="float32, float64 or bfloat16; if not said, bfloat16 on accelerators and else float32",
    ),
)

MODELS = _table(
    Signature("causal_lm", (Opt("source", "source"),), _MODEL, "A language model."),
    Signature("value_lm", (Opt("source", "source"),), _MODEL, "A language model with a scalar head on each token."),
    Signature("reward_lm", (Opt("source", "source"),), _MODEL, "A language model with one score for a row."),
)

CONSTRUCTORS = _table(
    Signature(
        "random",
        (Opt("family", "text"),),
        (
            Opt("seed", "int", 0, 0, None, "of the weights"),
            Opt("tokenizer", "any", None, doc="a folder, or chars(...), words(...), bytes()"),
        ),
        "Random weights for a Hugging Face model type; other options are its configuration's own.",
        open=True,
    ),
    Signature("chars", (Opt("alphabet", "text"),), doc="A tokenizer with a token for each of these characters."),
    Signature("words", (Opt("words", "text"),), doc="A tokenizer with a token for each of these words."),
    Signature("bytes", doc="A tokenizer with a token for each byte."),
    Signature(
        "cosine",
        (Opt("peak", "float", REQUIRED, 0.0),),
        (Opt("steps", "int", REQUIRED, 1), Opt("warmup", "int", 0, 0), Opt("final", "float", 0.0, 0.0)),
        "A rate that rises for `warmup` updates and falls as a cosine until update `steps`.",
    ),
    Signature(
        "linear",
        (Opt("peak", "float", REQUIRED, 0.0),),
        (Opt("steps", "int", REQUIRED, 1), Opt("warmup", "int", 0, 0), Opt("final", "float", 0.0, 0.0)),
        "A rate that rises for `warmup` updates and falls on a line until update `steps`.",
    ),
    Signature(
        "constant",
        (Opt("peak", "float", REQUIRED, 0.0),),
        (Opt("warmup", "int", 0, 0),),
        "A rate that rises for `warmup` updates and stays.",
    ),
)

RATES = ("cosine", "linear", "constant")

_BATCH = (
    Opt("batch", "int", None, 1, None, "rows drawn at a time; all of them if it is left out"),
    Opt("shuffle", "bool", None, doc="each pass over the data in another order: the default, but for generators"),
    Opt("limit", "int", None, 1, None, "use this many rows only"),
)
_CALLED = (
    Opt("timeout", "float", None, 0.0, None, "seconds for a call"),
    Opt("workers", "int", None, 1, 256, "processes that the calls are spread over"),
)

DATA = _table(
    Signature("jsonl", (Opt("path", "text"),), _BATCH, "A file with a JSON object on each line."),
    Signature("parquet", (Opt("path", "text"),), _BATCH, "A Parquet file (extra `parquet`)."),
    Signature(
        "hub",
        (Opt("name", "text"),),
        (*_BATCH, Opt("split", "text", None), Opt("config", "text", None)),
        "A data set of the Hugging Face hub (extra `datasets`).",
    ),
    Signature(
        "python",
        (Opt("function", "text"),),
        (*_BATCH, Opt("timeout", "float", None, 0.0)),
        "Rows from a Python generator or list: `file.py:function`; other options are its arguments.",
        open=True,
    ),
    Signature(
        "reasoning_gym",
        (Opt("task", "text"),),
        (*_BATCH, Opt("size", "int", None, 1), Opt("seed", "int", None, 0), Opt("start", "int", None, 0)),
        "A procedural task of reasoning_gym (extra `gym`); other options are the task's own.",
        open=True,
    ),
)

FUNCS = _table(
    Signature(
        "python",
        (Opt("function", "text"),),
        (*_CALLED, Opt("batch", "int", None, 1, None, "rows a call")),
        "`file.py:function`, called as f(prompts, completions, **columns) -> a number for each row.",
        open=True,
    ),
    Signature(
        "reasoning_gym", (), _CALLED, "The verifier of the reasoning_gym task that the rows came from (extra `gym`)."
    ),
)

ENVS = _table(
    Signature(
        "python",
        (Opt("class", "text"),),
        _CALLED,
        "`file.py:Class` with reset(row), step(action) and close().",
        open=True,
    ),
)

BUFFERS = _table(
    Signature(
        "fifo",
        (),
        (Opt("capacity", "int", REQUIRED, 1, None, "rows; the oldest leave first"),),
        "Rows of earlier steps, the newest `capacity` of them.",
    ),
)

OUTSIDE = {"data": DATA, "func": FUNCS, "env": ENVS, "buffer": BUFFERS}

STATEMENTS = _table(
    Signature(
        "train",
        options=(
            Opt("lr", "rate", REQUIRED, 0.0, None, "learning rate, or a schedule by update"),
            Opt("clip_norm", "float", 0.0, 0.0, None, "the gradient's norm at most; 0: as it is"),
            Opt("weight_decay", "float", 0.0, 0.0, None, "of AdamW"),
            Opt("beta1", "float", 0.9, 0.0, 1.0, "of AdamW"),
            Opt("beta2", "float", 0.999, 0.0, 1.0, "of AdamW"),
            Opt("eps", "float", 1e-8, 0.0, None, "of AdamW"),
        ),
        doc="One AdamW step of the model on the value that its body minimizes.",
    ),
    Signature(
        "minibatch",
        options=(
            Opt("parts", "int", 1, 1, None, "slices"),
            Opt("epochs", "int", 1, 1, None, "passes over all slices"),
            Opt("shuffle", "bool", False, doc="each pass with other slices"),
        ),
        doc="The body for each slice of an axis and of all that lies in it.",
    ),
    Signature(
        "collect",
        (Opt("rows", "int", REQUIRED, 1, None, "rows to keep"),),
        (Opt("rounds", "int", 64, 1, None, "give up after so many batches"),),
        "The body on fresh batches until enough rows are kept; what is too much is carried over to the next step.",
    ),
    Signature(
        "async", options=(Opt("staleness", "int", REQUIRED, 0, 1024, "steps that the weights which sample lag behind"),)
    ),
    Signature("phase", options=(Opt("steps", "int", REQUIRED, 1, None, "how often it runs before the next phase"),)),
    Signature("update", options=(Opt("ema", "float", None, 0.0, 1.0, "share of the old weights that stays"),)),
    Signature("sample", (Opt("rows", "int", REQUIRED, 1, None, "rows to draw"),)),
    Signature(
        "place",
        options=(
            Opt("engine", "text", None, doc="transformers, megatron or vllm"),
            Opt("tp", "int", None, 1, None, "devices over which each layer is split"),
            Opt("pp", "int", None, 1, None, "stages in which the layers lie one after another"),
            Opt("dp", "int", None, 1, None, "copies that share the rows"),
            Opt("ep", "int", None, 1, None, "devices over which experts are split"),
            Opt("cp", "int", None, 1, None, "devices over which each row's tokens are split"),
        ),
        doc="The work of models on a pool; the compiler chooses what is not said.",
    ),
    Signature("stream", options=(Opt("block", "int", REQUIRED, 1, None, "rows that travel together"),)),
)


@dataclass(frozen=True, slots=True)
class Engine:
    operations: frozenset[str]
    """What it can do with a model's weights."""
    splits: tuple[str, ...]
    """How it can be parallel."""


_FORWARD = frozenset({"logprobs", "entropy", "values", "score"})

ENGINES: dict[str, Engine] = {
    "transformers": Engine(_FORWARD | {"train", "generate", "interact"}, ("dp",)),
    "megatron": Engine(_FORWARD | {"train"}, ("tp", "pp", "dp", "ep", "cp")),
    "vllm": Engine(frozenset({"generate", "interact"}), ("tp", "dp")),
}
"""The engines that a schedule can name, and what each is for."""
