"""The signatures of every built-in call and statement: names, types, ranges and defaults of options.

The checker, the language reference and the suggestions in diagnostics all read these tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from rlgraph.backends.enginespec.registry import engines_by_name, option_values
from rlgraph.ir.attributes import REQUIRED, Attribute
from rlgraph.ir.graph import SPANS
from rlgraph.ir.mesh import LISTED
from rlgraph.ops import NODES


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments and options of a call or a statement."""

    name: str
    args: tuple[Attribute, ...] = ()
    """The values given by position."""
    options: tuple[Attribute, ...] = ()
    """The values given by name."""
    doc: str = ""
    open: bool = False
    """Whether other options are allowed and handed on: those of a task, a file format, a configuration."""
    repeats: bool = False
    """Whether its last argument may be given several times."""
    of_its_kind: bool = False
    """Whether it is made of others of its kind, by name or as calls: a mixture of data."""


@dataclass(frozen=True, slots=True)
class Method:
    """An operation of a model, as the language calls it."""

    signature: Signature
    takes: str = "a table"
    """The positional arguments, in words."""
    example: str = "rollout"
    environment: bool = False
    """Whether it takes an environment before its rows."""
    makes: str = ""
    """The name of the rows that it makes, if the user gives none."""
    by_row: bool = False
    """Whether it gives a number for each row, not for each token."""
    over_vocabulary: bool = False
    """Whether it gives a number for each token of the vocabulary, inside each token."""


def signature_table(*signatures: Signature) -> dict[str, Signature]:
    """Return signatures by their names."""
    return {signature.name: signature for signature in signatures}


def _options(operation: str, *names: str) -> tuple[Attribute, ...]:
    """Return the attributes of an operation that a user gives; only those of these names, if there are any."""
    given = (attribute for attribute in NODES[operation].attributes if attribute.by == "user")
    return tuple(attribute for attribute in given if attribute.name in names or not names)


_OF_THE_ROWS = tuple(replace(attribute, default=None) for attribute in _options("logprobs"))
"""A temperature that is not given is that of the rows."""

METHODS: dict[str, dict[str, Method]] = {
    "causal_lm": {
        "generate": Method(
            Signature(
                "generate",
                options=_options("generate"),
                doc="Answers that the model samples to the rows of a table (its column `prompt`), or to a text column.",
            ),
            takes="the rows to answer",
            example="prompts, max_tokens=512",
            makes="rollout",
        ),
        "interact": Method(
            Signature(
                "interact",
                options=_options("interact"),
                doc="Episodes with an environment: the model acts, the environment answers. Its tokens carry no loss.",
            ),
            takes="an environment and the rows to start from",
            example="shell, tasks, max_turns=8, max_tokens=4096",
            environment=True,
            makes="episode",
        ),
        "logprobs": Method(
            Signature("logprobs", options=_OF_THE_ROWS, doc="Log-probability of each token that carries loss.")
        ),
        "entropy": Method(
            Signature(
                "entropy",
                options=_OF_THE_ROWS,
                doc="Entropy in nats of the distribution that each token was sampled from.",
            )
        ),
        "distribution": Method(
            Signature(
                "distribution",
                options=_OF_THE_ROWS,
                doc="Probability of each token of the vocabulary in the place of each token that carries loss; to be "
                "reduced: `sum(x, vocab)`.",
            ),
            over_vocabulary=True,
        ),
        "likeliest": Method(
            Signature(
                "likeliest",
                options=(*_OF_THE_ROWS, *_options("likeliest", "top_k", "top_p", "min_p")),
                doc="Probability of the likeliest tokens in the place of each token that carries loss, and 0 of all "
                "others of the vocabulary; it is stored.",
            ),
            example="rollout, top_k=64",
            over_vocabulary=True,
        ),
    },
    "value_lm": {"values": Method(Signature("values", doc="Value of the state before each token that carries loss."))},
    "reward_lm": {"score": Method(Signature("score", doc="Score of each row, read at its last token."), by_row=True)},
}
"""The methods of each kind of model, by the name of the operation."""

_MODEL = (
    Attribute(
        "dtype",
        "text",
        None,
        doc="float32, float64 or bfloat16; if not said, bfloat16 on accelerators and else float32",
    ),
    Attribute(
        "autocast",
        "text",
        None,
        doc="products of float32 weights in bfloat16; auto: where the processor multiplies that faster",
    ),
    Attribute("lora", "lora", None, doc="train adapters, `lora(...)`, and not the model itself"),
    Attribute("chat", "chat", None, doc="how conversations are written, `chat(...)`; if not said, as the model's own"),
)

MODELS = signature_table(
    Signature("causal_lm", (Attribute("source", "source"),), _MODEL, "A language model."),
    Signature(
        "value_lm", (Attribute("source", "source"),), _MODEL, "A language model with a scalar head on each token."
    ),
    Signature("reward_lm", (Attribute("source", "source"),), _MODEL, "A language model with one score for a row."),
)

CONSTRUCTORS = signature_table(
    Signature(
        "random",
        (Attribute("family", "text"),),
        (
            Attribute("seed", "int", 0, 0, None, "of the weights"),
            Attribute("tokenizer", "any", None, doc="a folder, or chars(...), words(...), bytes()"),
        ),
        "Random weights for a Hugging Face model type; other options are its configuration's own.",
        open=True,
    ),
    Signature("gguf", (Attribute("file", "text"),), doc="A model in a GGUF file, dequantized (extra `gguf`)."),
    Signature(
        "lora",
        options=(
            Attribute("rank", "int", REQUIRED, 1, None, "of each adapter"),
            Attribute(
                "alpha",
                "float",
                None,
                0.0,
                doc="what they add is scaled by alpha / rank; if not said, by 1; twice the rank is usual",
                excluded=(0.0,),
            ),
            Attribute(
                "targets", "texts", "all-linear", doc="names of layers; `all-linear`: all linear ones but the output"
            ),
            Attribute("seed", "int", 0, 0, None, "of the random half of each adapter; the other half begins with 0"),
        ),
        doc="Low-rank adapters, which are trained in place of the model (arXiv 2106.09685).",
    ),
    Signature(
        "chat",
        options=(
            Attribute("template", "text", None, doc="a file with a Jinja template, in place of the tokenizer's own"),
            Attribute("system", "text", None, doc="the system's message of conversations that have none"),
            Attribute(
                "special_tokens",
                "bool",
                None,
                doc="whether the text of a special token in a prompt is that token; if not said, only in a prompt that "
                "is a plain text",
            ),
            Attribute(
                "continue_final_message",
                "bool",
                False,
                doc="whether a prompt that ends with a message of the assistant's is gone on from; if not, another "
                "message begins behind it",
            ),
        ),
        doc="How conversations are written; other options are the chat template's own.",
        open=True,
    ),
    Signature("chars", (Attribute("alphabet", "text"),), doc="A tokenizer with a token for each of these characters."),
    Signature("words", (Attribute("words", "text"),), doc="A tokenizer with a token for each of these words."),
    Signature("bytes", doc="A tokenizer with a token for each byte."),
    Signature(
        "cosine",
        (Attribute("peak", "float", REQUIRED, 0.0),),
        (
            Attribute("steps", "int", REQUIRED, 1),
            Attribute("warmup", "int", 0, 0),
            Attribute("final", "float", 0.0, 0.0),
        ),
        "A rate that rises for `warmup` updates and falls as a cosine until update `steps`.",
    ),
    Signature(
        "linear",
        (Attribute("peak", "float", REQUIRED, 0.0),),
        (
            Attribute("steps", "int", REQUIRED, 1),
            Attribute("warmup", "int", 0, 0),
            Attribute("final", "float", 0.0, 0.0),
        ),
        "A rate that rises for `warmup` updates and falls on a line until update `steps`.",
    ),
    Signature(
        "constant",
        (Attribute("peak", "float", REQUIRED, 0.0),),
        (Attribute("warmup", "int", 0, 0),),
        "A rate that rises for `warmup` updates and stays.",
    ),
    Signature("columns", doc="Columns of data and a value for each, by name.", open=True),
)

RATES = ("cosine", "linear", "constant")

ROW = Signature(
    "row",
    options=_options("row"),
    doc="Rows made of pieces behind one another: tokens of tables, texts, messages.",
)

ENCODE = Signature("encode", options=_options("encode"), doc="Rows of texts or conversations as tokens.")

STATEMENTS = signature_table(
    Signature(
        "train", options=_options("train"), doc="One AdamW step of the model on the value that its body minimizes."
    ),
    Signature(
        "minibatch",
        options=_options("minibatch"),
        doc="The body for each slice of an axis and of all that lies in it.",
    ),
    Signature(
        "collect",
        _options("collect", "rows"),
        _options("collect", "rounds", "ahead", "rest"),
        "The body on fresh batches until enough rows are kept.",
    ),
    Signature(
        "async",
        options=(
            Attribute("lag", "int", None, 0, 1024, "steps that the weights which sample are behind"),
            Attribute("staleness", "int", None, 0, 1024, "steps that the weights which sample are behind at most"),
            Attribute(
                "span", "word", None, doc="what is of one version: a row, a turn, or a token", names=lambda: SPANS
            ),
            Attribute("unit", "word", "step", doc="what `staleness` counts", names=lambda: ("step", "update")),
            Attribute(
                "late",
                "word",
                "wait",
                doc="no row gets too old, since generating waits; or one that does is dropped, or sampled again",
                names=lambda: ("wait", "drop", "again"),
            ),
            Attribute(
                "order",
                "word",
                "data",
                doc="what `collect` takes: the first rows in the data, those that are there first, or the oldest there",
                names=lambda: ("data", "arrival", "deadline"),
            ),
        ),
    ),
    Signature(
        "phase", options=(Attribute("steps", "int", REQUIRED, 1, None, "how often it runs before the next phase"),)
    ),
    Signature(
        "resample",
        _options("resample", "rows"),
        _options("resample", "replace"),
        "Rows that are drawn with weights, as often as they are drawn.",
    ),
    Signature("update", options=_options("update")),
    Signature("sample", _options("sample")),
    Signature(
        "place",
        options=(
            Attribute("engine", "text", None, names=engines_by_name),
            *(Attribute(axis.name, "int", None, 1, None, axis.doc) for axis in LISTED),
            Attribute("recompute", "bool", None, doc="training computes the inside of each layer again, to keep less"),
            Attribute("attention", "word", None, names=partial(option_values, "attention")),
            Attribute(
                "adapters",
                "word",
                None,
                doc="beside the weights, or merged into them",
                names=partial(option_values, "adapters"),
            ),
            Attribute(
                "gather",
                "word",
                None,
                doc="parameters that `fsdp` shares out come together in training layer by layer, or once an update",
                names=partial(option_values, "gather"),
            ),
            Attribute(
                "optimizer",
                "word",
                None,
                doc="training keeps moments and wide weights on the device, or in the host's memory and updates there",
                names=partial(option_values, "optimizer"),
            ),
            Attribute("sleep", "bool", None, doc="models are in the host's memory while they are not used"),
            Attribute("cache", "float", None, 1.0, None, "bytes of keys and values on each device that samples"),
            Attribute(
                "share", "float", None, 0.01, 1.0, "without a cluster: of a device's memory, for weights and cache"
            ),
            Attribute("max_len", "int", None, 1, None, "tokens of the longest row that is sampled, with its prompt"),
        ),
        doc="The work of models on a pool; the compiler chooses what is not said.",
    ),
    Signature(
        "stream",
        options=(
            Attribute("block", "int", None, 1, None, "rows that travel together; chosen if it is not said"),
            Attribute(
                "deal",
                "word",
                "even",
                doc="each copy of a model has an even share of the rows, or takes a block when it is free",
                names=lambda: ("even", "free"),
            ),
        ),
        doc="Rows of a table that go on before its batch is whole.",
    ),
    Signature(
        "admit",
        options=(
            Attribute(
                "by",
                "word",
                "longest",
                doc="what says how long an answer will be: `longest`, what its prompt gave before; a column of the "
                "data, or a function of the program",
            ),
        ),
        doc="Rows of a table that begin first: those that are expected to be the longest.",
    ),
    Signature(
        "tail",
        options=(
            Attribute(
                "under",
                "float",
                None,
                doc="rows that have not ended, as a number or a share of all; chosen if it is not said",
            ),
            Attribute("on", "int", None, 1, None, "copies of the model that go on with them; chosen if it is not said"),
        ),
        doc="What becomes of the last rows of a table, when fewer than so many have not ended.",
    ),
    Signature(
        "send",
        options=(Attribute("delta", "bool", False, doc="only the elements that changed travel, to the bit"),),
        doc="How the weights of a model travel to those who need them on a pool.",
    ),
    Signature(
        "refresh",
        options=(
            Attribute(
                "by",
                "word",
                "drain",
                doc="unfinished rows end first, are read again with the new weights, or go on as they are",
                names=lambda: ("drain", "reread", "keep"),
            ),
            Attribute(
                "each",
                "word",
                "all",
                doc="the copies of the model take new weights together, or one after the other",
                names=lambda: ("all", "replica"),
            ),
        ),
        doc="How new weights of a model come to a pool that samples with it.",
    ),
)
