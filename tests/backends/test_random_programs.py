"""Programs made at random: filters, groups, choices, tables made of tables and loops, in blocks of any size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from tiny import EPS, Run, compile_text, data_folder, weights

from tests.suites import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("random"))


HEAD = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
model ref = frozen(causal_lm({weights(3)}, dtype="float64"))
data prompts = jsonl("prompts.jsonl", batch=6, shuffle=false)

step:
"""


class Writer:
    """Writes a program; every value it makes is reported."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.lines: list[str] = []
        self.tables: dict[str, str] = {}
        """Tables with tokens, and what each lies in."""
        self.values: dict[str, str] = {}
        """Values with rows: the table they lie on."""
        self.tokens: dict[str, str] = {}
        self.count = 0

    def text(self) -> str:
        self.table()
        for _ in range(self.dice.randint(3, 7)):
            self.dice.choice(
                [self.table, self.keep, self.keep_group, self.center, self.pick, self.scan, self.score, self.score]
            )()
        if self.dice.random() < 0.6:
            self.loop()
        names = [*self.values, *self.tokens]
        self.line("report " + ", ".join(f"{name}_1 = sum({name}), {name}_2 = sum({name} * {name})" for name in names))
        return HEAD + "".join(f"    {line}\n" for line in self.lines)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def any_table(self) -> str:
        return self.dice.choice(list(self.tables))

    def row_value(self, table: str) -> str:
        known = [name for name, on in self.values.items() if on == table]
        return self.dice.choice(known) if known else self.score(table)

    def table(self) -> None:
        source = self.dice.choice(["prompts", *self.tables])
        name, n = self.name("t"), self.dice.randint(1, 3)
        self.line(f"{name} = actor.generate({source}, n={n}, max_tokens={self.dice.randint(0, 3)})")
        # With one row for each, the rows are the source's: the two keep their own names for them here.
        self.tables[name] = source if n > 1 else self.tables.get(source, "")
        self.score(name)

    def score(self, table: str = "") -> str:
        table = table or self.any_table()
        name = self.name("s")
        kind = self.dice.randint(0, 3)
        model = self.dice.choice(["ref", "actor"])
        self.line(
            f"{name} = "
            + [
                f"sum({table}.tokens % 3, token) / 2",
                f"mean({model}.logprobs({table}, temperature=2.0), token)",
                f"{table}.length * 1.5 - 2",
                f"sum(where({table}.end, {table}.logprobs, 0.1), token)",
            ][kind]
        )
        self.values[name] = table
        return name

    def scan(self) -> None:
        table = self.any_table()
        name = self.name("k")
        score = self.row_value(table)
        self.line(
            f"{name} = {self.dice.choice([f'discount({score} * {table}.end, 0.9)', f'accumulate({table}.logprobs, 0.9 - 0.5 * {table}.end)', f'cumsum({table}.logprobs + {score})', f'whiten({table}.logprobs) * {score}'])}"
        )
        self.tokens[name] = table

    def center(self) -> None:
        table = self.any_table()
        group = self.tables[table] or table
        value, name = self.row_value(table), self.name("c")
        self.line(f"{name} = {value} - {self.dice.choice(['mean', 'max', 'std', 'sum'])}({value}, by={group}) / 2")
        self.values[name] = table

    def keep(self) -> None:
        table = self.any_table()
        value = self.row_value(table)
        self.line(f"keep {table} where {value} > {self.dice.choice([-9, -2, -1, 0.4, 1, 50])}")

    def keep_group(self) -> None:
        table = self.any_table()
        if self.tables[table]:
            value = self.row_value(table)
            self.line(
                f"keep {self.tables[table]} where mean({value}, by={self.tables[table]}) > {self.dice.choice([-9, -2, 0.4, 1])}"
            )

    def pick(self) -> None:
        table = self.any_table()
        group = self.tables[table]
        if not group:
            return
        value, name = self.row_value(table), self.name("b")
        self.line(f"keep {group} where size({value}, by={group}) > 0")
        self.line(
            f"{name} = pick({table}, {self.dice.choice(['argmax', 'argmin'])}({value}{self.dice.choice(['', f' - mean({value})'])}, by={group}))"
        )
        self.tables[name] = self.tables.get(group, "")
        self.score(name)

    def loop(self) -> None:
        table = self.any_table()
        value = self.row_value(table)
        over = self.dice.choice([name for name in (table, self.tables[table], "prompts") if name])
        shuffle = self.dice.choice(["true", "false"])
        self.line(
            f"minibatch {over}(parts={self.dice.randint(1, 4)}, epochs={self.dice.randint(1, 2)}, shuffle={shuffle}):"
        )
        self.line(f"    train actor(lr=0.01, eps={EPS}):")
        name = self.name("g")
        self.line(f"        {name} = actor.logprobs({table}) * {value}")
        self.line(
            f"        minimize {self.dice.choice([f'mean({name})', f'mean(mean({name}, token))', f'mean(sum({name}, token)) / 3'])}"
        )
        self.tokens[name] = table


SETTINGS: list[dict[str, int]] = [
    {"block": 1},
    {"block": 2, "micro_rows": 1},
    {"block": 3, "micro_rows": 2},
    {"block": 5},
]


@pytest.mark.parametrize("seed", few(range(10), 0, 1, 4))
def test_a_random_program_is_the_same_in_any_blocks(folder: Path, seed: int) -> None:
    text = Writer(seed).text()
    program = compile_text(text)
    (whole,) = Run(program, folder, micro_rows=1000).steps(1)
    for settings in SETTINGS:
        (seen,) = Run(program, folder, **settings).steps(1)
        assert seen.metrics == pytest.approx(whole.metrics, abs=1e-10, rel=1e-10, nan_ok=True), text
        for name, value in whole.weights["actor"].items():
            torch.testing.assert_close(seen.weights["actor"][name], value, atol=1e-10, rtol=1e-10, msg=text)
