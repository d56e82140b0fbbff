"""The examples in the documents: how they are found, completed, made small and run.

What is fenced as `rlf` is a program; the words behind it say how to read it:

    rlf                   a whole program
    rlf declarations      declarations; the rest of a program is added
    rlf step              statements of a step
    rlf loss              statements of a `train actor` body, with `logp` and `ratio` made above
    rlf error E0301       a whole program that is refused with this code. If a `text` fence follows that shows a
                          diagnostic, it is the one printed

What an example uses and does not declare is added from `STANDARD`. Every example is checked as it stands, and then run
for two steps on tiny random models: sources of models are replaced, sizes made small, and data, functions and
environments that the page does not bring replaced by those of `TINY`. Other fences:

    python                runs, top to bottom, all fences of a page in one namespace
    python NAME.py        a file beside the page's examples; so are `json NAME.json` and `json NAME.jsonl`
    python no-run         only has to be Python
    console, sh           only commands of rlgraph that exist, with options that exist (see test_docs)

`<!-- table: NAME -->` to `<!-- end -->` holds a table made from the signatures; `<!-- file: PATH -->` says that the
fence below it is that file, and `<!-- printed: rlgraph ... -->` that it is what this command prints, in which a line
`...` stands for any number of lines. `<!-- takes 9.3 s: rlgraph compile ... -->` says that the paragraph below it has
these seconds of a step from this command (`test_printed_pages.py` for both). `pytest --update-golden` writes all of them
anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "rlgraph" / "README.md", *ROOT.glob("docs/**/*.md")]
)
MODEL = (
    'random("qwen2", hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, '
    'num_key_value_heads=1, max_position_embeddings=1100, tokenizer=chars("abcdefgh0123456789 +=>?"))'
)
TEMPLATE = (
    "{% for m in messages %}{{ '>' + m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
"""The chat template of that model, where the rows of a page are messages."""
CHAT = ', chat=chat(template="tiny.jinja")'
TINY = """
def rows():
    return [{"prompt": f"{i}+{i}=", "answer": str(2 * i), "response": "ab", "chosen": "ab", "rejected": "ba",
             "id": i, "level": i % 3} for i in range(12)]

def score(prompts, completions, **columns):
    return [text.count("a") + (len(text) + i) % 3 for i, text in enumerate(completions)]

class Env:
    def reset(self, row):
        return "?"
    def step(self, action):
        return ">", float("a" in action), len(action) > 3

def ask(base_url, api_key):
    import json, urllib.request
    body = json.dumps({"prompt": "2+2=", "max_tokens": 4}).encode()
    asked = urllib.request.Request(base_url + "/completions", body, {"Authorization": f"Bearer {api_key}"})
    with urllib.request.urlopen(asked) as answer:
        return float("a" in json.loads(answer.read())["choices"][0]["text"])
"""

STANDARD = {
    "actor": 'model actor = causal_lm("m")',
    "critic": 'model critic = value_lm("m")',
    "ref": "model ref = frozen(actor)",
    "reward": 'model reward = frozen(reward_lm("m"))',
    "prompts": 'data prompts = jsonl("prompts.jsonl", batch=4)',
    "pairs": 'data pairs = jsonl("pairs.jsonl", batch=4)',
    "tasks": 'data tasks = jsonl("tasks.jsonl", batch=4)',
    "correct": 'func correct = python("rewards.py:exact_match")',
    "shell": 'env shell = python("envs.py:Shell")',
    "solved": "state solved[key] = 0.0",
}
"""Declarations by the name they give, in the order in which they stand in a program."""

VALUES = {
    "rollout": "rollout = actor.generate(prompts, n=4, max_tokens=8)",
    "score": "score = correct(rollout)",
    "adv": "adv = score - mean(score, by=prompts)",
}
"""Assignments at the beginning of a step."""

LOSS = {"logp": "logp = actor.logprobs(rollout)", "ratio": "ratio = exp(logp - rollout.logprobs)"}
"""Assignments at the beginning of a loss."""


@dataclass(frozen=True)
class Fence:
    page: Path
    line: int
    info: str
    text: str
    lead: str = ""
    """The line above it."""
    files: dict[str, str] = field(default_factory=dict, compare=False)
    """Files that the page shows."""

    @property
    def words(self) -> list[str]:
        return self.info.split()

    def __str__(self) -> str:
        return f"{page_id(self.page)}:{self.line}"


def page_id(page: Path) -> str:
    """Return a page's path from the root of the repository: several pages have one name."""
    return page.relative_to(ROOT).as_posix()


def fences(page: Path) -> list[Fence]:
    """Everything that is fenced on a page."""
    found = []
    text = page.read_text("utf-8")
    for match in re.finditer(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", text, flags=re.MULTILINE):
        above = text[: match.start()].rstrip().rpartition("\n")[2]
        body = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
        found.append(Fence(page, text[: match.start()].count("\n") + 1, match[2].strip(), body, above))
    files = {words[1]: fence.text for fence in found if len(words := fence.words) == 2 and "." in words[1]}
    return [Fence(f.page, f.line, f.info, f.text, f.lead, files) for f in found]


def examples() -> list[Fence]:
    """Every program on every page."""
    return [fence for page in PAGES for fence in fences(page) if fence.words[:1] == ["rlf"]]


# Completing


def program(fence: Fence) -> str:
    """A whole program from an example."""
    kind = fence.words[1] if len(fence.words) > 1 else "whole"
    text = fence.text
    if kind in ("whole", "error"):
        return text
    if kind == "declarations":
        text += "\nstep:\n    report nothing = 0\n"
    if kind == "loss":
        text = f"train actor(lr=1e-3):\n{_indent(_lead(text, LOSS) + text)}"
    if kind in ("loss", "step"):
        text = f"step:\n{_indent(_lead(text, VALUES) + text)}"
    text = f"algorithm example\n\n{text}"
    needed = _needed(text, STANDARD)
    head, _, rest = text.partition("\n")
    return "\n".join([head, *(line for name, line in STANDARD.items() if name in needed), rest])


def _lead(text: str, known: dict[str, str]) -> str:
    """Assignments of values that the text uses and does not make first."""
    needed = _needed(text, known)
    return "".join(f"{line}\n" for name, line in known.items() if name in needed)


def _needed(text: str, known: dict[str, str]) -> set[str]:
    found: set[str] = set()
    pending = [name for name in known if _uses(text, name)]
    while pending:
        name = pending.pop()
        found.add(name)
        own = known[name].partition("=")[2]
        pending += [other for other in known if other not in found and other != name and _word(own, other)]
    return found


def _uses(text: str, name: str) -> bool:
    """Whether the first time that a name stands in a text, it is used and not made."""
    text = re.sub(r"#.*|\"[^\"\n]*\"", "", text)
    if re.search(rf"^(param|model|data|func|env|state|buffer) +{name}\b", text, flags=re.MULTILINE):
        return False
    made = re.search(rf"^ *{name} *= (?P<value>.*)", text, flags=re.MULTILINE)
    used = re.search(rf"(?<![.\w]){name}\b(?! *=[^=])", text)
    if used is None:
        return False
    return made is None or used.start() < made.end("value")


def _word(text: str, name: str) -> bool:
    return re.search(rf"(?<![.\w]){name}\b", text) is not None


def _indent(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


# Making small


TINY_FORMS = {"agent": 'agent("tiny.py:ask", workers=2)'}
"""What takes the place of declarations of these forms, whatever they declare."""


def small(text: str, files: dict[str, str]) -> str:
    """The program with everything that costs time made tiny, and what is not there replaced."""
    random = r"random\((?:[^()]|\([^()]*\))*\)"
    model = MODEL + (CHAT if any('"role"' in rows for rows in files.values()) and "chat(" not in text else "")
    text = re.sub(rf"(_lm\()\s*(?:\"[^\"]*\"|{random})", rf"\g<1>{_quote(model)}", text)
    for name in set(re.findall(r"_lm\((\w+)", text)) - {"random"}:
        text = re.sub(rf"^(param +{name} *= *)(?:{random}|.*)", rf"\g<1>{_quote(MODEL)}", text, flags=re.MULTILINE)
    text = re.sub(r"max_tokens=(\w+)", "max_tokens=8", text)
    text = re.sub(r"(max_turns)=\w+", r"\1=2", text)
    text = re.sub(r"\bn=(\d+)", lambda m: f"n={min(int(m[1]), 4)}", text)
    text = re.sub(r"^(param +n +=) *\d+", r"\1 4", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s*every) \d+", r"\1 2", text, flags=re.MULTILINE)
    text = re.sub(r"^(phase \w+)\(steps=\d+", r"\1(steps=1", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s*collect \w+)\(\w+", r"\1(4", text, flags=re.MULTILINE)
    for kind, tiny in (
        ("data", 'python("tiny.py:rows", batch=4)'),
        ("func", 'python("tiny.py:score")'),
        ("env", 'python("tiny.py:Env")'),
    ):
        text = re.sub(
            rf"^({kind} +\w+ *= *)(\w+\((?:[^()]|\([^()]*\))*\))",
            lambda m, tiny=tiny: m[0] if _brought(m[2], files) else m[1] + _tiny_form(m[2], tiny),
            text,
            flags=re.MULTILINE,
        )
    return text


def _tiny_form(call: str, tiny: str) -> str:
    """What takes the place of a call of a constructor: what its options mean for the program stays."""
    form = TINY_FORMS.get(call.partition("(")[0], tiny)
    branches = re.search(r", branches=\w+", call)
    return form.replace(", workers", f"{branches[0]}, workers") if branches else form


def used(text: str) -> dict[str, str]:
    """The files that a program uses of those that ship, made small: beside it, they come first."""
    names = re.findall(r'^use "([^"]+)"', text, flags=re.MULTILINE)
    shipped = {name: ROOT / "rlgraph/algorithms" / name for name in names}
    return {name: small(path.read_text("utf-8"), {}) for name, path in shipped.items() if path.exists()}


def _quote(text: str) -> str:
    return text.replace("\\", r"\\")


def _brought(call: str, files: dict[str, str]) -> bool:
    path = re.search(r'"([^":]+)', call)
    return path is not None and path[1] in files


# Tables


def tables(page: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every made table on a page."""
    for match in re.finditer(r"<!-- table: (\S+) -->\n((?:.*\n)*?)<!-- end -->", page.read_text("utf-8")):
        yield match[1], match[2]


def with_tables(page: Path, make: dict[str, str]) -> str:
    """The page with its tables made anew."""
    return re.sub(
        r"(<!-- table: (\S+) -->\n)(?:.*\n)*?(<!-- end -->)",
        lambda m: m[1] + make[m[2]] + m[3],
        page.read_text("utf-8"),
    )


def with_files(text: str) -> str:
    """The text with every fence below `<!-- file: PATH -->` as that file is."""
    return re.sub(
        r"(<!-- file: (\S+) -->\n```.*\n)(?:.*\n)*?(```\n)",
        lambda m: m[1] + (ROOT / m[2]).read_text("utf-8") + m[3],
        text,
    )


PRINTED = re.compile(r"(<!-- printed: (.*?) -->\n```.*\n)((?:.*\n)*?)(```\n)")
"""What stands above such a fence, the command, the fence's text, its end."""


def with_printed(text: str, command: str, out: str) -> str:
    """The text with every fence below `<!-- printed: COMMAND -->` of this command as it prints it now."""
    return PRINTED.sub(
        lambda m: m[1] + excerpt(m[3].splitlines(), out.splitlines()) + m[4] if m[2] == command else m[0], text
    )


TAKES = re.compile(r"<!-- takes (\S+ m?s): (.*?) -->\n")
"""Seconds of a step, and the command that prints them."""


def with_seconds(text: str, command: str, out: str) -> str:
    """The text with the seconds of a step below `<!-- takes SECONDS: COMMAND -->` as the command prints them now.

    Raises AssertionError where the paragraph has no such seconds.
    """
    blocks = text.split("\n\n")
    for i, block in enumerate(blocks):
        for was in [seconds for seconds, by in TAKES.findall(block) if by == command]:
            figure = rf"(?<![\d.]){re.escape(was)}\b"
            assert len(re.findall(figure, block)) > 1, f"no {was} in {block}"
            [now] = re.findall(r": (\S+ m?s) a step by the", out)
            blocks[i] = block = re.sub(figure, now, block)
    return "\n\n".join(blocks)


def excerpt(shown: list[str], now: list[str]) -> str:
    """The lines that a page shows of what a command printed, as it prints them now.

    A part behind `...` begins where a line is most like its first one, after all that is shown before, and has as many
    lines as the page shows; the last part has all that are left, if no `...` follows.
    """
    made: list[str] = []
    at = 0
    for omitted, lines in groupby(shown, "...".__eq__):
        part = list(lines)
        if omitted:
            made.append("...")
            continue
        if made:
            at += max(
                range(len(now) - at), key=lambda i: SequenceMatcher(None, now[at + i], part[0]).ratio(), default=0
            )
        until = at + len(part) if shown[-1] == "..." or part[-1] is not shown[-1] else len(now)
        made += now[at:until]
        at = until
    return "".join(f"{line}\n" for line in made)


def generated() -> dict[str, str]:
    """Every table that is made from what the compiler itself reads."""
    from rlgraph.dsl import outside_signatures as outside
    from rlgraph.dsl import signatures as own
    from rlgraph.ops import TENSOR

    made: dict[str, str] = {}
    for kind in ("elementwise", "reduction", "ranking", "scan"):
        rows = [
            (_call(op.name, op.args), op.doc, _result(op.dtype))
            for op in TENSOR.values()
            if op.function and op.kind == kind
        ]
        made[f"functions.{kind}"] = _table(("function", "meaning", "result"), rows)
    for kind, methods in own.METHODS.items():
        for name, method in methods.items():
            made[f"method.{kind}.{name}"] = _options(method.signature)
    for name, signature in own.STATEMENTS.items():
        made[f"statement.{name}"] = _options(signature)
    groups = {
        "models": own.MODELS,
        "constructors": own.CONSTRUCTORS,
        "data": outside.DATA,
        "funcs": outside.FUNCS,
        "envs": outside.ENVS,
        "buffers": outside.BUFFERS,
    }
    for name, group in groups.items():
        made[name] = _table(
            ("form", "meaning"), [(f"`{_form(signature)}`", signature.doc) for signature in group.values()]
        )
    made["lora"] = _options(own.CONSTRUCTORS["lora"])
    made["chat"] = _options(own.CONSTRUCTORS["chat"])
    made["encode"] = _options(own.ENCODE)
    made["row"] = _options(own.ROW)
    made["data.options"] = _shared(outside.DATA)
    made["called.options"] = _shared(outside.FUNCS)
    made["prelude"] = _prelude()
    made["lines"] = _lines()
    made["warnings"] = _warnings()
    return made


def _lines() -> str:
    from benchmarks.lines import counts, others

    systems = others()
    rows = []
    for found in counts():
        link = f"[`{found.path.stem}`](algorithms/{found.path.stem}.md)"
        beside = [f"{lines:,}" if (lines := own.get(found.path.stem)) else "" for own in systems.values()]
        rows.append((link, f"**{found.lines}**", *beside, found.title.split(" (arXiv")[0].split(":")[0]))
    return _table(("algorithm", "rlgraph", *systems, ""), rows)


def _warnings() -> str:
    from rlgraph.errors.codes import all_codes

    return _table(
        ("code", "warns of"), [(f"`{code.name}`", code.title) for code in all_codes().values() if code.name[0] == "W"]
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


def _call(name: str, count: int) -> str:
    names = {
        "clip": "x, low, high",
        "where": "condition, a, b",
        "quantile": "x, q",
        "discount": "x, decay",
        "accumulate": "x, decay",
        "top": "x, k",
        "running": "x, y",
    }
    return f"`{name}({names.get(name, 'x' if count == 1 else 'a, b')})`"


def _result(dtype: str) -> str:
    return {"same": "as its arguments", "row": "a choice of rows"}.get(dtype, dtype)


def _options(signature) -> str:  # type: ignore[no-untyped-def]
    return _table(
        ("option", "kind", "default", "meaning"),
        [(f"`{opt.name}`", _kind(opt), _default(opt), opt.summary) for opt in (*signature.args, *signature.options)],
    )


def _kind(opt) -> str:  # type: ignore[no-untyped-def]
    if opt.type in ("word", "outcome"):
        return str(opt.choices_text)
    name = {
        "int": "whole number",
        "float": "number",
        "bool": "true or false",
        "rate": "number or schedule",
        "texts": "text or list of texts",
        "any": "constant",
    }.get(opt.type, opt.type)
    if opt.low is not None and opt.high is not None:
        return f"{name}, {opt.low:g} to {'below ' if opt.high in opt.excluded else ''}{opt.high:g}"
    if opt.low is not None and opt.low in opt.excluded:
        return f"{name}, above {opt.low:g}"
    return f"{name}, at least {opt.low:g}" if opt.low else name


def _default(opt) -> str:  # type: ignore[no-untyped-def]
    if repr(opt.default) == "required":
        return "needed"
    if opt.default is None or opt.default == ():
        return ""
    return f"`{str(opt.default).lower()}`" if isinstance(opt.default, bool) else f"`{opt.default}`"


def _form(signature) -> str:  # type: ignore[no-untyped-def]
    parts = [opt.name.upper() for opt in signature.args] + ["..."] * signature.repeats
    parts += [f"{opt.name}=" for opt in signature.options]
    parts += ["..."] * signature.open
    return f"{signature.name}({', '.join(parts)})"


def _shared(group) -> str:  # type: ignore[no-untyped-def]
    """Options that several of a group have, with who has them."""
    owners: dict[str, list[str]] = {}
    opts = {}
    for signature in group.values():
        for opt in signature.options:
            owners.setdefault(opt.name, []).append(signature.name)
            opts[opt.name] = opt
    rows = [
        (
            f"`{n}`",
            "all" if len(own) == len(group) else ", ".join(f"`{o}`" for o in own),
            _kind(opts[n]),
            opts[n].summary,
        )
        for n, own in owners.items()
    ]
    return _table(("option", "of", "kind", "meaning"), rows)


def _prelude() -> str:
    text = (ROOT / "rlgraph/dsl/prelude.rlf").read_text("utf-8")
    rows, comment = [], ""
    for block in text.split("\n\n"):
        if match := re.search(r"^# (.*)", block, flags=re.MULTILINE):
            comment = match[1]
        for head, body in re.findall(r"^def (.*):\n((?:    .*\n?)+)", block, flags=re.MULTILINE):
            lines = [f"`{line.strip()}`" for line in body.strip().splitlines()]
            rows.append((f"`{head}`", comment, "<br>".join(lines)))
    return _table(("def", "meaning", "written"), rows)
