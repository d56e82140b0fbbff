"""The words of the language, and where each of them stands."""

from __future__ import annotations

from rlgraph.ops.nodes import NODES

DECLARING = ("param", "model", "data", "func", "env", "buffer", "state")
"""Words that declare a name: `model actor = ...`."""

TOP = ("algorithm", "use", *DECLARING, "def", "step", "phase", "change", "schedule")
"""Words that begin a line at the left margin."""

BLOCKS = ("train", *(name for name, op in NODES.items() if op.loop))
"""Words that begin a block inside a step."""

STATEMENTS = (*BLOCKS, "minimize", "report", "keep", "resample", "push", "update", "stop")
"""Words that begin a line inside a step."""

ADDITIONS = ("after", "before")
"""Words that begin a block inside a `change:`, beside its statements."""

PLACEMENTS = ("pool", "place", "stream", "admit", "tail", "fuse", "send", "refresh")
"""Words that begin a line of a schedule."""

HEADERS = ("def", "step", "phase", "change", "schedule", *BLOCKS, *ADDITIONS)
"""Words whose line ends in `:`, with an indented block below."""

INSIDE = ("async", "where", "from", "on", "to", "devices", "cpus", "and", "or", "not", "true", "false", "True", "False")
"""Words that stand inside a line."""

SOFT = frozenset(
    (*PLACEMENTS, *ADDITIONS, "stop", "resample", "devices", "cpus", "on", "to", "from")
    + ("algorithm", "use", "phase", "change", "schedule", "param", "model", "func", "env", "buffer", "state")
)
"""Words that are names wherever the grammar has no use for them as words."""

KEYWORDS = frozenset((*TOP, *STATEMENTS, *ADDITIONS, *PLACEMENTS, *INSIDE, "return"))
"""All words of the language."""

RESERVED = KEYWORDS - SOFT
"""Words that cannot name a value."""

HOMES = {
    **{word: "at the left margin, outside the step" for word in TOP},
    **{word: "inside `step:` or a block of it" for word in STATEMENTS},
    **{word: "in a schedule, under `schedule NAME` or `schedule:`" for word in PLACEMENTS},
    **{word: "in `change:`, as `after NAME:` with a block" for word in ADDITIONS},
    "if": "inside `step:` or a block of it; `where(condition, a, b)` chooses by row",
    "stop": "inside a `minibatch`, as `stop where condition`",
    "return": "at the end of a `def`",
}
"""The place where a line that begins with the word belongs."""

PYTHON = {
    "elif": "there is no `elif`: write an `if` of its own, or choose by row with `where(condition, a, b)`",
    "else": "there is no `else`: write `if not condition:`, or choose by row with `where(condition, a, b)`",
    "for": "there is no `for`: operations work on all rows at once, `minibatch T(parts=4):` loops over rows",
    "while": "there is no `while`: the step repeats by itself, `collect T(512):` repeats a part of it",
    "import": 'there is no `import`: `func f = python("file.py:f")` brings in a Python function',
    "class": "there is no `class`: values are tables and arrays",
    "lambda": "there is no `lambda`: write `def f(x):` with a `return`",
    "with": "there is no `with`: `train M(lr=1e-6):` computes with gradients to M",
    "try": "there is no `try`: a row that fails is an error of the run",
    "except": "there is no `except`: a row that fails is an error of the run",
    "finally": "there is no `finally`: a row that fails is an error of the run",
    "raise": "there is no `raise`: drop rows with `keep T where condition`",
    "assert": "there is no `assert`: drop rows with `keep T where condition`, or `report` a number",
    "pass": "there is no `pass`: leave the empty block out",
    "break": "there is no `break`: `stop where condition` ends a `minibatch`",
    "continue": "there is no `continue`: drop rows with `keep T where condition`",
    "del": "there is no `del`: the compiler frees a value after its last use",
    "global": "there is no `global`: `state x = 0.0` lives across steps, and `x := ...` stores in it",
    "nonlocal": "there is no `nonlocal`: `state x = 0.0` lives across steps, and `x := ...` stores in it",
    "yield": "there is no `yield`: a `def` ends in `return`",
    "await": "there is no `await`: the compiler decides what waits, from what each line needs",
    "print": "there is no `print`: `report name = x` shows a number of each step",
    "maximize": "there is no `maximize`: `minimize -x` makes x large",
    "in": "there is no `in`: compare with `==`, joined by `or`",
    "is": "there is no `is`: compare with `==`",
}
"""Words of Python and of papers that the language does not have, and what to write in their place."""

LIBRARIES = {
    "learning_rate": "lr",
    "max_grad_norm": "clip_norm",
    "grad_clip": "clip_norm",
    "max_new_tokens": "max_tokens",
    "max_completion_length": "max_tokens",
    "max_response_length": "max_tokens",
    "max_prompt_length": "max_prompt",
    "num_generations": "n",
    "num_return_sequences": "n",
    "temp": "temperature",
    "batch_size": "batch",
    "train_batch_size": "batch",
    "r": "rank",
    "lora_alpha": "alpha",
}
"""Options of transformers, TRL, verl and PEFT, and what they are called in the language."""

OPERATORS = {
    "&&": "write `and`",
    "||": "write `or`",
    "!": "write `not`",
    "&": "write `and`",
    "|": "write `or`",
    "~": "write `not`",
    "^": "a power is written `**`",
    "<>": "write `!=`",
    "{": "options are written `name=value` in round brackets, lists in square ones",
    "}": "options are written `name=value` in round brackets, lists in square ones",
    ";": "write each statement on a line of its own",
    "\\": "put the expression in round brackets: a line goes on until they close",
    "->": "a `def` has no types: the compiler derives them",
    "$": "a parameter is used by its name alone",
    "@": "the product of values is written `*`",
    "?": "choose by row with `where(condition, a, b)`",
    "`": "strings are written in double quotes",
}
"""Signs that the language does not have, and what to write in their place."""

OTHER_NAMES = {
    "sort": "`rank(x)` is the place of each row, `top(x, k)` is true for the k largest",
    "sorted": "`rank(x)` is the place of each row, `top(x, k)` is true for the k largest",
    "argsort": "`rank(x)` is the place of each row, 0 for the largest",
    "topk": "`top(x, k)` is true for the k largest of a group, or of all rows",
    "shift": "`roll(x)` is what the row before has, and for the first one what the last one has",
    "random": "`uniform(TABLE)` is a number from 0 to 1 for each row",
    "rand": "`uniform(TABLE)` is a number from 0 to 1 for each row",
    "randn": "`uniform(TABLE)` is a number from 0 to 1 for each row",
    "sample": "`actor.generate(TABLE)` samples answers, `uniform(TABLE)` random numbers",
    "shuffle": "`minibatch T(shuffle=true)` and `data` shuffle rows; `uniform(TABLE)` is a random number for each row",
    "len": "`size(x)` counts entries, `TABLE.length` is the tokens of each row",
    "length": "`TABLE.length` is the tokens of each row, `size(x)` counts entries",
    "numel": "`size(x)` counts entries",
    "average": "`mean(x, by=TABLE)` is the average of each group",
    "avg": "`mean(x, by=TABLE)` is the average of each group",
    "variance": "`var(x, by=TABLE)` is the variance of each group",
    "cumprod": "write it out: `exp(cumsum(log(x)))`",
    "prod": "write it out: `exp(sum(log(x)))`",
    "concat": 'texts stand behind one another in quotes, `"{rollout.text}{prompts.answer}"`, tokens in `row(A, B)`',
    "cat": 'texts stand behind one another in quotes, `"{rollout.text}{prompts.answer}"`, tokens in `row(A, B)`',
    "format": 'a text has names in braces: `"{rollout.text} {score:.2f}"`',
    "expand": "a value of each row meets its tokens by itself: `adv * rollout.logprobs`",
    "broadcast": "a value of each row meets its tokens by itself: `adv * rollout.logprobs`",
    "repeat": "a value of each row meets its tokens by itself: `adv * rollout.logprobs`",
    "spread": "`std(x, by=TABLE)` is the standard deviation of each group",
    "stdev": "`std(x, by=TABLE)` is the standard deviation of each group",
    "standardize": "`whiten(x)` has mean 0 and standard deviation 1",
    "median": "`quantile(x, 0.5)` is the median, of each group with `by=TABLE`",
    "percentile": "`quantile(x, 0.9)` is what nine tenths are below, of each group with `by=TABLE`",
    "majority": "`size(x, by=key(prompts, x)) / size(x, by=prompts)` is the share of answers that are the same",
    "norm": "write it out: `sqrt(sum(x * x))`",
    "softmax": "write it out: `exp(x) / sum(exp(x), by=TABLE)`",
    "logsumexp": "write it out: `log(sum(exp(x), by=TABLE))`",
    "kl": "`k1(p, q)`, `k2(p, q)` and `k3(p, q)` estimate it from two log-probabilities; all of it is "
    "`sum(p * log(p / q), vocab)` of `actor.distribution(TABLE)`",
    "kl_divergence": "`k1(p, q)`, `k2(p, q)` and `k3(p, q)` estimate it from two log-probabilities; all of it is "
    "`sum(p * log(p / q), vocab)` of `actor.distribution(TABLE)`",
    "distribution": "a model has it: `actor.distribution(TABLE)`, to be reduced by `sum(x, vocab)`",
    "entropy": "a model has it: `actor.entropy(TABLE)`, at each token",
    "logprobs": "a model has them: `actor.logprobs(TABLE)`, at each token",
    "generate": "a model does: `actor.generate(TABLE, n=4)`",
    "stop_gradient": "`detach(x)` is the value without its gradient",
    "no_grad": "only what stands in `train M:` has gradients; `detach(x)` takes them from a value",
    "clamp": "`clip(x, low, high)` holds a value between two others",
    "power": "a power is written `x**2`",
    "pow": "a power is written `x**2`",
    "square": "a power is written `x**2`",
    "isnan": "`valid(x)` is true where a row has a value",
    "mask": "`where(condition, a, b)` chooses by entry, `keep TABLE where condition` drops rows",
    "filter": "`keep TABLE where condition` drops the other rows",
    "groupby": "reductions group: `mean(x, by=TABLE)`, or by equal values, `mean(x, by=key(TABLE, y))`",
    "stop": "`stop where condition` ends a `minibatch`; `--steps` ends a run",
    "match": 'write `matches(TEXT, "PATTERN")`, or `contains(TEXT, "PART")`',
    "regex": 'write `matches(TEXT, "PATTERN")`',
    "search": 'write `matches(TEXT, "PATTERN")`',
    "int": "`number(TEXT)` reads a number, `floor(x)` and `round(x)` make it whole",
}
"""Functions as other libraries call them, and what the language has."""
