"""Rows of published measurements, and what each becomes here: a program, a schedule and a cluster.

A row whose work no plan here does is not dropped: `Inexpressible` says why.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from benchmarks.older_vllm import NO_HOST, other_vllm
from benchmarks.padded_rows import Controller
from rlgraph.backends.enginespec.rates import WorkKind
from rlgraph.catalog.clusters.cluster import Device
from rlgraph.catalog.clusters.devices import device_names_by_alias, known_devices
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import find_config
from rlgraph.catalog.models.configs import known_models as model_names
from rlgraph.catalog.models.families import parameter_count
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.passes.cost import work
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.lengths import Lengths, largest_excess, parse_lengths
from rlgraph.passes.cost.work import Tokens

NEEDED = ("id", "model", "gpu", "phase", "engine", "value", "unit")
NUMBERS = (
    *("nodes", "gpus", "tp", "pp", "dp", "ep", "prompt_len", "response_len", "batch", "micro_batch"),
    *("longest", "gen_tp", "cp"),
)
"""Columns that may be missing or empty; where they are not, each has a whole number."""

SOURCES = Path(__file__).resolve().parent / "accuracy" / "sources.csv"
"""Who has measured, and whether constants were fitted to that."""

PER_NODE = 8
"""Devices of a node, where a row does not say."""

STANDS_IN: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "trtllm": ("vllm", {**NO_HOST, "row": 9.3e-6, "compute": 0.84, "call": 4e-3}),
    **dict.fromkeys(("sglang", "lmdeploy"), ("vllm", NO_HOST)),
    "hf-generate": ("transformers", {}),
    **dict.fromkeys(("fsdp", "fsdp2"), ("transformers", {"logit": 71})),
    "fsdp-megatron": ("transformers", {"logit": 52, "gradient": 0.0, "stepped": 16}),
    "deepspeed": ("megatron", {"logit": 71}),
    **dict.fromkeys(("automodel", "internevo"), ("megatron", {"logit": 71})),
}
"""Systems that have no engine here, the engine that does the same work, and the constants in which they differ from it.
TensorRT-LLM's seconds of a row in a decoding step are a fifth of vLLM's (fitted to GA18 to GA47), and its products
reach more (fitted to these, to TP01, and to TA01, 03, 05 and 07). Its benchmarks wait for no order; a call takes what
is left of TP03 (in the same table an H100, which reads these 7 billion weights in FP8 in 2.3 ms, takes 7). SGLang's
host works while the device does (since 0.4), and LMDeploy's is written in C++. Where nothing is known of a system's
loss it is taken for torch's, which reads and writes 71 bytes for each logit (docs/why/gpu.md); the loss and the
gradients of Megatron's FSDP are Megatron's (`FORMER`). `generate` of Hugging Face is not our decoder, which stands in
for it. Tables of results name both."""

CACHE_COPIES: Mapping[str, tuple[float, float]] = {"hf-generate": (3.0, 2.0)}
"""How often a system moves its cache in a decoding step, and how often more for each head that shares keys with others.
`generate` of Hugging Face appends to a copy (read and written), and then repeats keys and values for each head (read
once, written and read for each): `DynamicLayer.update` and `repeat_kv` of transformers 4.46 and 4.51."""

BESIDE: Mapping[str, tuple[float, float]] = {"nemo-rl": (4.76, 0.381)}
"""Seconds of a system's transition from training to generation on the same devices, for a billion weights, and with
which power of their number it grows: moments and weights that leave the devices, weights that come. NeMo-RL's is 17.2 s
for Qwen3-30B-A3B and 40.2 s for Qwen3-235B-A22B (its pull request 3294), and 55 s for DeepSeek-V3 (638), which this is
within 6% of. No row of a step is needed for it."""

FORMER: Sequence[tuple[str, str, Mapping[str, float]]] = (
    ("megatron", r"april2021|2104\.04473", {"memory": 0.34, "hides": 0.0, "attention": 1.4}),
    ("megatron", r"^https", {"logit": 52, "gradient": 0.0, "stepped": 16}),
    ("transformers", r"26 November 2026", {"logit": 71}),
    ("megatron", r"26 November 2026", {"stepped": 60}),
    ("fsdp", r"llm-foundry", {"attention": 1.5, "memory": 1.05}),
)
"""Engines, sources that have measured them as they are not here, and what differs.

Megatron's attention was written out in 2021: beside what else goes to memory (about 34 bytes for each number of a
token's hidden state, arXiv 2205.05198) there were as many bytes of scores, or more (2,048 tokens of 4 bytes in a head
for each 128 numbers: 64), of which none was skipped, and norms were on all tensor ranks. And ranks waited for all that
they exchanged. llm-foundry's attention was of 2023, in Triton, with biases (fitted to FH09, FH15, FA07 and FA11), and
of its GPTs' layers 32 bytes for each hidden number go to memory where a gated decoder has 37. Megatron's loss reads
and writes about 52 bytes for each logit (`vocab_parallel_cross_entropy`, as its source says). Transformer Engine adds
up gradients in the products and steps in one kernel: 16 bytes a weight are left, to clear the gradient, for its norm
and to clip it. Only silybench's vLLM is as new as the one here, three sources' is of 2024, NeMo-RL's is not known, and
taken for an older one. When our rows were measured transformers' loss was torch's, and Megatron's AdamW had a kernel
for each operation."""

WHOLE_EXPERTS = (
    r"NVIDIA-NeMo/(RL|Megatron-Bridge)|nvidia\.com/nemo/rl|seonjinn/RL|Megatron-MoE-ModelZoo|verl_megatron_practice"
)
"""Sources whose tensor-parallel ranks have experts of their own and split none, so that `ep` counts them, too: the
`expert_tensor_parallel_size` of NeMo-RL, of Megatron Bridge, of the model zoo and of verl's scripts is 1. Here they
split each, and `ep` is so many times smaller: every rank has as many weights of experts, and tokens travel among as
many ranks."""

DISPATCH: Sequence[tuple[str, str, Mapping[str, float]]] = (
    ("source", WHOLE_EXPERTS, {"whole_experts": True, "experts": 9e-3}),
    ("notes", r"\b(DeepEP|HybridEP)\b", {"once_a_node": True}),
    ("notes", r"\boverlaps with other micro-batches\b", {"hides_routed": True}),
    ("notes", r"\bcaptured\b", {"experts": 0.0}),
)
"""Columns, what they say, and how tokens get to their experts then, other than in the engine here: tensor-parallel
ranks that have whole experts gather nothing; NVIDIA's kernels send a token once to a node; its 1F1B schedule
computes other micro-batches meanwhile. Transformer Engine multiplies and casts for each expert by itself, which takes
the host 9 ms for a layer that is trained (fitted to MB07 and MB14, where the device has least to do), and a third of it
(assumed) for one that is read; where the router and what prepares it are CUDA graphs it does little. Which recipe does
what is in `scripts/performance/configs` of Megatron Bridge, and in the model zoo's tables."""

FUSED: Mapping[WorkKind, float] = {"train": 6.0, "forward": 0.0}
"""Bytes of a logit where a row's notes say that its loss is fused with the head: going forward no logit is written, and
their gradients are written once and read by two products (`linear_cross_entropy` of verl). The head's product is
computed again on the way back, which is not counted."""

NEW_ATTENTION = r"\bflash attention [34]\b"
"""What notes say where a system has a device's own kernels for attention; `transformers` has FlashAttention 2."""

WHOLE_TENSORS: Mapping[str, float] = {"section": 0.0}
"""What differs in NeMo-RL's transfers of weights: each tensor goes in one call, whatever memory that takes. Ours run in
rounds of so many bytes, and cut tensors into sections. The experts of a layer are one tensor for each projection, as
here (its `docs/design-docs/nccl-reshard-refit.md`), so that it has as many pieces."""

SERVED: Sequence[tuple[str, float]] = ((r"silybench", 1e-3), ("", 8e-3))
"""Sources whose rows went to a server over HTTP, and seconds of each, in which it reads the request, splits it into
tokens and answers. Of vLLM 0.30 fitted to SB01 to SB20; of the others to VP04, VP08, VP12 and VP16, whose answers have
four tokens."""

SERVER_LIMITS: Sequence[tuple[Callable[[Device], bool], Mapping[str, int]]] = (
    (lambda device: device.memory >= 160 << 30, {"prompt_tokens": 16384, "rows": 1024}),
    (lambda device: device.memory >= 70 << 30 and "a100" not in device.name, {"prompt_tokens": 8192, "rows": 1024}),
    (lambda device: True, {"prompt_tokens": 2048, "rows": 256}),
)
"""What a server of vLLM reads at a time, and how many rows it decodes together, where nobody says: by the device, the
first that fits (`EngineArgs.get_batch_defaults` of vLLM 0.32, for `OPENAI_API_SERVER`). Our engine says both itself."""

SPREAD = 3
"""Of whole steps, how many times their mean length the answers are that 1 of 100 exceeds: rows do not say."""

TAIL = 6
"""The same of their median, where a row says at which length answers are cut: before they are."""


class BadRows(ValueError):
    """A file that has no rows of measurements; the message says what is wrong with it."""


class Inexpressible(ValueError):
    """A row that no program, schedule and cluster here says the same as; the message says why."""


@dataclass(frozen=True)
class Publisher:
    """Who has measured rows. Constants are fitted to all rows of a publisher, or to none."""

    prefix: str
    """Sources that begin so are the publisher's."""
    name: str
    fitted: bool
    """Whether constants were fitted to its rows; else it is unseen."""


@cache
def publishers() -> tuple[Publisher, ...]:
    with SOURCES.open(encoding="utf-8", newline="") as file:
        return tuple(Publisher(line["prefix"], line["name"], bool(line["fitted"])) for line in csv.DictReader(file))


@dataclass(frozen=True)
class Row:
    """One measurement, as its file has it."""

    id: str
    cells: Mapping[str, str]
    """Text by column; empty where the column is missing."""

    def number(self, column: str) -> int:
        """0 where nothing is said. Raises Inexpressible."""
        text = self.cells[column]
        try:
            found = int(float(text)) if text else 0
        except (ValueError, OverflowError):
            raise Inexpressible(f"column `{column}` has `{text[:30]}`, which is no number") from None
        if found < 0:
            raise Inexpressible(f"column `{column}` has {found}, which is less than 0")
        return found

    @property
    def value(self) -> float:
        """Raises Inexpressible."""
        try:
            found = float(self.cells["value"])
        except ValueError:
            raise Inexpressible(f"column `value` has `{self.cells['value'][:30]}`, which is no number") from None
        if not 0 < found < float("inf"):
            raise Inexpressible(f"column `value` has {found:g}, and has to be above 0")
        return found

    @property
    def engine(self) -> str:
        """Without its version."""
        return self.cells["engine"].lower().split(" ")[0]

    @property
    def phase(self) -> str:
        """The first word of its phase, which is one of `PHASES`."""
        return self.cells["phase"].lower().split(" ")[0]

    @property
    def publisher(self) -> Publisher:
        """Who measured it."""
        source = self.cells["source"]
        known = [publisher for publisher in publishers() if source.startswith(publisher.prefix)]
        return max(
            known, key=lambda publisher: len(publisher.prefix), default=Publisher(source, source or "rows", False)
        )

    def noted(self, pattern: str) -> int:
        """The number that the notes have in such a place; 0 where they have none."""
        found = re.search(pattern, self.cells["notes"])
        return int(found[1]) if found else 0


def read_rows(path: Path) -> list[Row]:
    """Raises BadRows."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRows(f"`{path}` cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    reader = csv.DictReader(lines)
    columns = [name.strip() for name in reader.fieldnames or ()]
    if not columns:
        raise BadRows(f"`{path}` is empty; its first line has the names of the columns: {', '.join(NEEDED)}, ...")
    if missing := [name for name in NEEDED if name not in columns]:
        raise BadRows(f"`{path}` has no column {', '.join(f'`{name}`' for name in missing)}")
    reader.fieldnames = columns
    wanted = (*NEEDED, *NUMBERS, "source", "dtype", "notes")
    found = []
    for place, cells in enumerate(reader, 1):
        texts = {name: (cells.get(name) or "").strip() for name in wanted}
        found.append(Row(texts["id"] or f"row {place}", texts))
    if not found:
        raise BadRows(f"`{path}` has no row below the names of its columns")
    return found


@dataclass(frozen=True)
class Experiment:
    """What a row says, in the words of this project."""

    program: str
    schedule: str
    cluster: str
    prompts: str
    answers: str
    """Lengths, as `--prompt-tokens` and `--response-tokens` have them."""
    work: str
    """The kind of work whose seconds count, as `rlgraph.ops.model_work_of` has it; empty: the whole step."""
    measured: float
    """Seconds of it."""
    group: str
    """Rows of one group are measured by one system on one device."""
    engine: str
    """That stands in for the row's; empty where it is the row's own."""
    micro_tokens: int = 0
    """Of a whole step the most that are trained together: NeMo-RL's recipes pack rows to the longest one's tokens."""
    recompute: bool = False
    differs: Mapping[str, float] = field(default_factory=dict)
    """Constants of the engine that stands in which are others for the row's own; or those of a transfer of weights."""
    even: bool = False
    """Whether each expert is chosen as often, as benchmarks have it (`moe_router_force_load_balancing` of Megatron,
    `fake_balanced_gate` of Automodel). In reinforcement learning routers are as they were trained."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """What of the engine's cache is another for the row's own (`ReservedCache`)."""
    engines: Mapping[tuple[str, WorkKind], Mapping[str, float]] = field(default_factory=dict)
    """Constants of engines in a whole step which are others for the row's own, by engine and kind of work."""
    beside: float = 0.0
    """Seconds of the row's system that no plan here has."""
    slowest: float = 1.0
    """How many times as long the row's system takes, because replicas have unlike numbers of tokens."""
    products: str = ""
    """The dtype of products before the head, where it is another one than the weights'."""


def express(row: Row) -> Experiment:
    """Raises Inexpressible."""
    if row.phase not in PHASES:
        raise Inexpressible(f"phase `{row.cells['phase']}` is none of {', '.join(PHASES)}")
    return PHASES[row.phase](row)


class _Facts:
    """A row's columns as numbers and names."""

    def __init__(self, row: Row, rows: int = 0) -> None:
        """rows: of a row whose work has none."""
        self.row = row
        self.device = _device(row.cells["gpu"])
        self.tp, self.pp, self.cp = (max(1, row.number(name)) for name in ("tp", "pp", "cp"))
        copy = self.tp * self.pp * self.cp
        self.devices = row.number("gpus") or copy * max(1, row.number("dp"))
        self.dp = row.number("dp") or max(1, self.devices // copy)
        self.lag = row.noted(r"\blag\s*=?\s*(\d+)\b")
        self.apart = max(0, self.devices - copy * self.dp) if self.lag else 0
        """Devices that sample, where they are others than those that train."""
        if copy * self.dp + self.apart != self.devices:
            by = f" x cp {self.cp}" if self.cp > 1 else ""
            raise Inexpressible(f"tp {self.tp} x pp {self.pp}{by} x dp {self.dp} are not its {self.devices} devices")
        self.ep = max(1, row.number("ep"))
        nodes = row.number("nodes") or -(-self.devices // PER_NODE)
        if self.devices % nodes:
            raise Inexpressible(f"{self.devices} devices are not equal parts of {nodes} nodes")
        network = row.noted(r"\ba network of (\d+) Gb/s a node\b")
        shared = f"@{network}Gb/s/node" if network else ""
        self.cluster = f"{nodes}x{self.devices // nodes}:{self.device}{shared}"
        self.source, self.shape = _model(row)
        self.rows = row.number("batch") or rows
        if not self.rows:
            raise Inexpressible("it does not say how many rows there are (`batch`)")
        self.prompt, self.response = row.number("prompt_len"), row.number("response_len")

    def model(self) -> str:
        dtype = self.row.cells["dtype"].lower()
        if dtype not in ("", "bf16", "fp16", "bfloat16", "float16") and not self.products:
            raise Inexpressible(f"its numbers are {dtype}, and models here have bfloat16 on such a device")
        return f'model actor = causal_lm({self.source}, dtype="bfloat16")'

    @property
    def served(self) -> bool:
        """Whether rows went to a server and came back over HTTP."""
        return bool(re.search(r"\bto a server\b", self.row.cells["notes"]))

    @property
    def server_limits(self) -> Mapping[str, int]:
        """What a server takes on at a time, as it is started without options."""
        device = known_devices()[self.device].device
        return next(limits for fits, limits in SERVER_LIMITS if fits(device))

    @property
    def products(self) -> str:
        """The dtype of products before the head, where it is another one than the weights'."""
        return "float8" if self.row.phase == "train" and self.row.cells["dtype"].lower() == "fp8" else ""

    def place(self, does: str, *engines: str) -> tuple[str, str]:
        """A schedule with one pool, and which engine of these stands in for the row's."""
        engine, _ = STANDS_IN.get(self.row.engine, (self.row.engine, {}))
        if engine not in engines:
            raise Inexpressible(f"`{self.row.cells['engine']}` has no engine here that could stand in for it")
        how = ", ".join((f"engine={engine}", *self.split(engine)))
        text = f"schedule measured\n\npool all = {self.devices} devices\n\nplace {does} on all({how})\n"
        return text, "" if engine == self.row.engine else engine

    def split(self, engine: str) -> Iterator[str]:
        """How a schedule says the row's split. Raises Inexpressible."""
        if self.ep > 1 and engine != "megatron":
            raise Inexpressible(f"its experts are split over devices (ep), which {engine} does not do here")
        chunks = self.row.noted(r"\b(\d+) chunks a stage") or 1
        if "trained with MTP" in self.row.cells["notes"]:
            raise Inexpressible("it trains a layer more, for the token after the next (MTP), which models here lack")
        if self.pp > 1 and chunks == 1 and "interleaved" in self.row.cells["notes"]:
            raise Inexpressible("its pipeline is interleaved, and it does not say in how many parts")
        ep = self.ep
        if ep % self.tp == 0 and re.search(WHOLE_EXPERTS, self.row.cells["source"]):
            ep //= self.tp
        if self.dp % ep and not self.dp * self.cp % ep:
            raise Inexpressible("its experts are split over the ranks that share a row's tokens (cp), too")
        if self.dp % ep:
            raise Inexpressible(f"ep {self.ep} does not divide its dp {self.dp}")
        # In published rows experts are split over the copies; here over the ranks of one.
        sizes = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": ep, "dp": self.dp // ep}
        if self.row.engine.startswith("fsdp"):
            sizes["fsdp"] = self.row.noted(r"in shards of (\d+)") or self.dp
            sizes["dp"] = self.dp // sizes["fsdp"]
        yield from (f"{name}={size}" for name, size in sizes.items() if size > 1)
        if self.pp > 1 and engine == "megatron":
            # Whose pipeline is interleaved says so.
            yield f"chunks={chunks}"

    def group(self, phase: str) -> str:
        """What the row says of its phase belongs to it, but what a value is of."""
        kind = self.row.cells["phase"].partition("(")[2].rstrip(") ")
        phase = f"{phase} {kind}" if kind and not kind.startswith("per ") else phase
        return f"{phase}, {self.row.engine}, {self.device}"

    def flops(self, recomputed: bool, causal: bool = False) -> float:
        """Of a step of training, all devices together, with the attention in full as Narayanan et al. count it
        (arXiv 2104.04473, appendix). causal: without what a mask hides, as Megatron-LM counts since 2025."""
        length = self.prompt + self.response
        squares = self.rows * length**2 / (2 if causal else 1)
        tokens = Tokens(self.rows, self.rows * length, squares, self.rows * length)
        layers = work.layers_flops(self.shape, tokens)
        return layers * (4 if recomputed else 3) + 3 * work.head_flops(self.shape, "causal_lm", tokens)

    def seconds(self, tokens: float) -> float:
        """The row's value as seconds of the whole work, in which so many tokens are worked on."""
        value, unit = self.row.value, self.row.cells["unit"].lower()
        if unit.startswith("ms a token"):
            return value / 1e3 * self.response
        if re.match(r"(s|sec|seconds)\b", unit):
            return value
        if re.match(r"ms\b", unit):
            return value / 1e3
        if found := re.match(r"(?:(hardware|model|causal) )?tflops?(?:/s)?(/gpu)?$", unit):
            devices = self.devices if found[2] else 1
            flops = self.flops(found[1] == "hardware" and self.recompute, found[1] == "causal")
            return flops / (value * 1e12 * devices)
        if unit in ("mfu", "% mfu", "mfu %"):
            share = value / 100 if "%" in unit or value > 1 else value
            return self.flops(False) / (
                known_devices()[self.device].device.peak_flops("bfloat16") * share * self.devices
            )
        if found := re.match(r"(?:tokens?/s|tok/s|tokens?/second)(/gpu)?$", unit):
            return tokens / (value * (self.devices if found[1] else 1))
        raise Inexpressible(f"unit `{self.row.cells['unit']}` is not known here")

    @property
    def micro_tokens(self) -> int:
        """Tokens that a copy works on together: of so many rows, or as many as the notes say; 0 where nothing does."""
        cut = re.search(r"\bmicro-batches of up to ([\d,]+) tokens\b", self.row.cells["notes"])
        return int(cut[1].replace(",", "")) if cut else self.row.number("micro_batch") * (self.prompt + self.response)

    @property
    def recompute(self) -> bool:
        return "full recomputation" in self.row.cells["notes"].lower()


def _train(row: Row) -> Experiment:
    """Rows that are trained, in so many updates as the notes say."""
    parts = row.noted(r"\b(\d+) updates") or 1
    does = """    train actor(lr=1e-5):
        loss = mean(-actor.logprobs(answer))
        minimize loss"""
    if parts > 1:
        inner = does.replace("\n", "\n    ")
        does = f"    minibatch pairs(parts={parts}):\n    {inner}\n    report length = mean(answer.length)"
    else:
        does += "\n    report loss = loss"
    found = _with_controller(row, _over_rows(row, "train", does))
    return replace(found, slowest=_slowest(row, parts, found)) if _of_verl(row) else found


def _of_verl(row: Row) -> bool:
    return "(verl)" in row.cells["engine"]


def _with_controller(row: Row, found: Experiment) -> Experiment:
    """Add the seconds in which rows travel within a phase of verl. With FSDP each device has rows of its own."""
    if not _of_verl(row):
        return found
    facts = _Facts(row)
    replicas = facts.devices if row.engine == "fsdp" else facts.dp
    seconds = Controller().seconds(row.phase, facts.rows, row.number("longest"), replicas, facts.devices // replicas)
    return replace(found, beside=seconds)


def _slowest(row: Row, parts: int, found: Experiment) -> float:
    """How many times the tokens of the average replica the one with most has in an update, where nobody deals rows out
    by their tokens: verl balances a whole batch, and cuts each replica's rows into updates in their order. Rows of a
    replica add up to about a normal sum."""
    facts = _Facts(row)
    replicas = facts.dp // (row.noted(r"\bUlysses over (\d+)") or 1)
    lengths, rows = parse_lengths(found.answers), facts.rows / parts / replicas
    return 1 + largest_excess(replicas) * lengths.standard_deviation / (facts.prompt + lengths.mean) / rows**0.5


def _logprobs(row: Row) -> Experiment:
    """Rows that are read by the engine that trains, for old log-probabilities or those of a reference."""
    read = _over_rows(row, "forward", "    old = actor.logprobs(answer)\n    report old = mean(old)")
    return _with_controller(row, read)


def _over_rows(row: Row, kind: WorkKind, does: str) -> Experiment:
    """Work on rows that are there: the steps of a program that has a model `actor` and rows `answer`."""
    facts = _Facts(row)
    if not facts.prompt + facts.response:
        raise Inexpressible("it does not say how long its rows are")
    # Where nothing is an answer all tokens carry loss but the first, as in pre-training.
    prompt, answer = (facts.prompt, facts.response) if facts.response else (1, facts.prompt - 1)
    program = f"""algorithm measured

{facts.model()}
data pairs = jsonl("rows.jsonl", batch={facts.rows})

step:
    answer = encode(pairs.prompt, pairs.response)
{does}
"""
    operation, phase, work = KINDS[kind]
    schedule, engine = facts.place(f"actor.{operation}", "megatron", "transformers")
    return Experiment(
        program,
        schedule,
        facts.cluster,
        str(prompt),
        _answers(facts, answer),
        work,
        facts.seconds(facts.rows * (facts.prompt + facts.response)),
        facts.group(phase),
        engine,
        facts.micro_tokens,
        facts.recompute,
        differs=_differs(row, engine, kind),
        even="dealt out evenly" in row.cells["notes"],
        products=facts.products,
    )


KINDS: Mapping[WorkKind, tuple[str, str, str]] = {
    "train": ("train", "train", "trains"),
    "forward": ("logprobs", "logprobs", "scores"),
}
"""Of each kind of work on rows that are there: the operation, the phase, and what `Experiment.work` is."""


def _differs(row: Row, engine: str, kind: WorkKind) -> dict[str, float]:
    """Return the constants of an engine in which a row's own differs. engine: that stands in; empty where none does."""
    differs = (dict(STANDS_IN[row.engine][1]) if engine else {}) | _former(row)
    if kind == "forward":
        # What is said of systems is of losses that are trained.
        differs.pop("logit", None)
    if "fused loss" in row.cells["notes"]:
        differs["logit"] = FUSED[kind]
    if engine == "transformers" and re.search(NEW_ATTENTION, row.cells["notes"]):
        device = known_devices()[_device(row.cells["gpu"])].device
        differs["attention"] = device.plain_attention / device.attention
    return differs | _dispatch(row, kind)


def _former(row: Row, engine: str = "") -> dict[str, float]:
    """Return what differs of a row's engine, or of another one, where it was measured."""
    differs: dict[str, float] = {}
    if (engine or row.engine) == "vllm":
        differs |= other_vllm(row.cells["engine"].lower(), row.number("gen_tp"))
    for name, sources, constants in FORMER:
        if name == (engine or row.engine) and re.search(sources, row.cells["source"]):
            differs |= constants
    return differs


def _dispatch(row: Row, kind: WorkKind) -> dict[str, float]:
    """Return what differs in how a row's tokens get to experts, of a system that works like Megatron."""
    differs: dict[str, float] = {}
    for column, said, constants in DISPATCH:
        if re.search(said, row.cells[column]):
            differs |= constants
    if kind == "forward" and "experts" in differs:
        differs["experts"] /= 3
    return differs


def _generate(row: Row) -> Experiment:
    facts = _Facts(row)
    if not facts.prompt or not facts.response:
        raise Inexpressible("it does not say how long prompts and answers are")
    if "without CUDA graphs" in row.cells["notes"]:
        raise Inexpressible("its decoding steps are launched kernel by kernel; the engine here captures them")
    return _sampled(facts, "generate", facts.response)


def _prefill(row: Row) -> Experiment:
    facts = _Facts(row)
    if not facts.prompt:
        raise Inexpressible("it does not say how long prompts are")
    return _sampled(facts, "prefill", 1)


def _sampled(facts: _Facts, phase: str, answer: int) -> Experiment:
    program = f"""algorithm measured

{facts.model()}
data prompts = jsonl("rows.jsonl", batch={facts.rows})

step:
    rollout = actor.generate(prompts, n=1, max_tokens={_longest(facts, answer)})
    report logprob = mean(rollout.logprobs)
"""
    schedule, engine = facts.place("actor.generate", "vllm", "transformers")
    tokens = facts.rows * (answer if phase == "generate" else facts.prompt)
    differs = (STANDS_IN[facts.row.engine][1] if engine else {}) | _former(facts.row)
    if facts.row.engine in CACHE_COPIES:
        once, for_head = CACHE_COPIES[facts.row.engine]
        usual = default_constants("gpu").rates[engine or facts.row.engine, "generate"].cached
        differs["cached"] = usual * (once + for_head * facts.shape.heads / facts.shape.kv_heads)
    if facts.served:
        differs["begin"] = next(begin for source, begin in SERVED if re.search(source, facts.row.cells["source"]))
    return Experiment(
        program,
        schedule,
        facts.cluster,
        str(facts.prompt),
        str(answer) if answer == 1 else _answers(facts, answer),
        "generates",
        facts.seconds(tokens),
        facts.group(phase),
        engine,
        differs=differs,
        limits=facts.server_limits if facts.served else {},
    )


def _longest(facts: _Facts, answer: int) -> int:
    """At which length answers are cut: of rows for a benchmark all have one length, those of a training differ."""
    differ = SPREAD if re.search(r"\brollouts?\b", f"{facts.row.cells['phase']} {facts.row.cells['notes']}") else 1
    return facts.row.number("longest") or differ * answer


def _answers(facts: _Facts, answer: int) -> str:
    return _cut(answer, _longest(facts, answer))


def _step(row: Row) -> Experiment:
    """GRPO: on the plan that a row says, or on one that is searched for where it says little beside its sizes."""
    facts = _Facts(row)
    if not facts.prompt or not facts.response:
        raise Inexpressible("it does not say how long prompts and answers are")
    samples, parts = row.noted(r"\bn\s*=\s*(\d+)") or 1, row.noted(r"\b(\d+) updates") or 1
    longest = row.number("longest") or SPREAD * facts.response
    answers = _cut(facts.response, longest) if row.number("longest") else f"mean={facts.response},p99={longest}"
    with_ref, lag = "with a reference" in row.cells["notes"], facts.lag
    billion, power = BESIDE.get(row.engine, (0.0, 0.0))
    cut = re.search(r"\bcut at ([\d,]+) together", row.cells["notes"])
    text = f"""algorithm measured

{facts.model()}
{"model ref = frozen(actor)" if with_ref else ""}
data prompts = jsonl("rows.jsonl", batch={facts.rows})
func reward  = python("rlgraph.rewards:exact_match", over=row)

step{f" async(lag={lag})" if lag else ""}:
    rollout = actor.generate(prompts, n={samples}, max_tokens={longest})
    score   = reward(rollout)
    adv     = (score - mean(score, by=prompts)) / (std(score, by=prompts) + 1e-6)
    old     = actor.logprobs(rollout)
    gap     = mean(abs(old - rollout.logprobs))
    {"ref_logp = ref.logprobs(rollout)" if with_ref else ""}
    minibatch prompts(parts={parts}):
        train actor(lr=1e-6):
            logp  = actor.logprobs(rollout)
            ratio = exp(logp - old)
            loss  = mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv))
            minimize loss{" + 0.01 * mean(k3(logp, ref_logp))" if with_ref else ""}
    report reward = mean(score), gap = gap
"""
    return Experiment(
        text,
        _step_schedule(facts, with_ref),
        facts.cluster,
        str(facts.prompt),
        answers,
        "",
        facts.seconds(facts.rows * samples * (facts.prompt + facts.response)),
        facts.group("step"),
        "" if row.engine in ("megatron+vllm", "megatron->vllm") else "megatron and vllm",
        engines={
            ("vllm", "generate"): _former(row, "vllm"),
            ("megatron", "train"): _dispatch(row, "train"),
            ("megatron", "forward"): _dispatch(row, "forward"),
        },
        micro_tokens=int(cut[1].replace(",", "")) if cut and row.engine == "nemo-rl" else 0,
        beside=0.0 if facts.apart else billion * (parameter_count(facts.shape, "causal_lm") / 1e9) ** power,
    )


def _step_schedule(facts: _Facts, with_ref: bool) -> str:
    """Where a row says how its weights are split while rows are sampled; empty where it does not."""
    sampling = facts.row.number("gen_tp")
    if not sampling:
        return ""
    recompute = ("recompute=true",) if facts.recompute else ()
    split = ", ".join(("engine=megatron", *facts.split("megatron"), *recompute))
    others = ", ref" if with_ref else ""
    copies = (facts.apart or facts.devices) // sampling
    if facts.apart:
        return f"""schedule measured

pool learn = {facts.devices - facts.apart} devices
pool play = {facts.apart} devices

place actor.train, actor.logprobs{others} on learn({split})
place actor.generate on play(engine=vllm, tp={sampling}, dp={copies})
"""
    return f"""schedule measured

pool all = {facts.devices} devices

place actor.train, actor.logprobs{others} on all({split})
place actor.generate on all(engine=vllm, tp={sampling}, dp={copies})
"""


def _cut(mean: int, longest: int) -> str:
    """Lengths with this mean, after those that are longer are cut: of a log-normal distribution whose median is found
    by halving. One of them all, where that is the mean."""
    if mean >= longest:
        return str(longest)
    low, high = 1.0, float(TAIL * longest)
    for _ in range(60):
        middle = (low * high) ** 0.5
        found = Lengths.lognormal(p50=middle, p99=TAIL * middle).capped(longest).mean
        low, high = (middle, high) if found < mean else (low, middle)
    return f"p50={low:.4f},p99={TAIL * low:.4f}"


def _sync(row: Row) -> Experiment:
    raise Inexpressible(
        "its weights are gathered, and broadcast whole from one rank; a plan here sends every shard straight to where "
        "it is needed"
    )


def _weights(row: Row) -> Experiment:
    """From where a model is trained to where it samples, on as many devices apart."""
    facts = _Facts(row, rows=1)
    sampling = row.number("gen_tp") or 1
    program = f"""algorithm measured

{facts.model()}
data prompts = jsonl("rows.jsonl", batch=64)

step:
    rollout = actor.generate(prompts, n=1, max_tokens=512)
    train actor(lr=1e-6):
        minimize -mean(actor.logprobs(rollout))
    report length = mean(rollout.length)
"""
    split = ", ".join(("engine=megatron", *facts.split("megatron")))
    schedule = f"""schedule measured

pool learn = {facts.devices} devices
pool play = {facts.devices} devices

place actor.train on learn({split})
place actor.generate on play(engine=vllm, tp={sampling}, dp={facts.devices // sampling})
"""
    nodes, _, rest = facts.cluster.partition("x")
    cluster = f"{2 * int(nodes)}x{rest}"
    group = facts.group("weights")
    seconds = facts.seconds(0)
    return Experiment(program, schedule, cluster, "256", "512", "weights", seconds, group, "", differs=WHOLE_TENSORS)


PHASES = {
    "train": _train,
    "logprobs": _logprobs,
    "generate": _generate,
    "prefill": _prefill,
    "step": _step,
    "sync": _sync,
    "weights": _weights,
}

# What rows call devices and models


def _device(text: str) -> str:
    """The name in the table of devices."""
    if not text:
        raise Inexpressible("it does not say on which devices (`gpu`)")
    plain = re.sub(r"\b(nvidia|amd|instinct|sxm\d?|hgx|pcie|nvl)\b", " ", text.lower())
    plain = re.sub(r"[\s-]+", "-", plain.strip()).strip("-")
    if plain in device_names_by_alias():
        return device_names_by_alias()[plain]
    near = get_close_matches(plain, device_names_by_alias(), 1)
    hint = f"; did it mean `{near[0]}`?" if near else ""
    raise Inexpressible(f"`{text}` is no device of the table{hint}")


def _model(row: Row) -> tuple[str, Shape]:
    """What a program writes for the model, and its shape."""
    name = row.cells["model"]
    if not name:
        raise Inexpressible("it does not say which model")
    if found := re.search(r"\((\d+) layers, hidden (\d+)(?:, (\d+) key-value heads)?\)", name):
        return _gpt(int(found[1]), int(found[2]), int(found[3] or 0), row.cells["notes"])
    full = _by_name().get(name.split("/")[-1].lower())
    config = find_config(full) if full else None
    if full is None or config is None:
        near = get_close_matches(name.split("/")[-1].lower(), _by_name(), 1)
        hint = f"; did it mean `{_by_name()[near[0]]}`?" if near else ""
        raise Inexpressible(f"the sizes of `{name}` are not known here{hint}")
    try:
        return f'"{full}"', shape_of(config)
    except UnsupportedModel as error:
        raise Inexpressible(str(error)) from None


def _gpt(layers: int, hidden: int, groups: int, notes: str) -> tuple[str, Shape]:
    """A GPT as Megatron's papers have it, as a decoder with gated networks that has the same products: three matrices
    of 8/3 of the hidden size in place of two of four times as much. Heads have 128 numbers. groups: heads of keys and
    values; 0: as many as there are."""
    heads = max(1, hidden // 128)
    ffn = -(-8 * hidden // (3 * 64)) * 64
    vocab = int(found[1]) if (found := re.search(r"vocabulary (\d+)", notes)) else 51200
    config = {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups or heads,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
    }
    said = ", ".join(f"{name}={str(value).lower()}" for name, value in config.items())
    text = f'random("llama", seed=0, {said}, tokenizer=chars("ab"))'
    try:
        return text, shape_of({"model_type": "llama", **config})
    except UnsupportedModel as error:
        raise Inexpressible(str(error)) from None


@cache
def _by_name() -> Mapping[str, str]:
    """Of each known model without its owner, in lower case."""
    return {name.split("/")[-1].lower(): name for name in model_names()}
