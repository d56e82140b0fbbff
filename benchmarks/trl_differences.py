"""Which tokens and losses of published rows are not those of TRL.

    python benchmarks/trl_tokens.py FOLDER_OF_A_TOKENIZER [TRAINING_TEMPLATE] > made.json   # where TRL is installed
    python benchmarks/trl_differences.py FOLDER_OF_A_TOKENIZER made.json

It prints a line for each row that differs, or that either of them refuses, and how many are the same. Rows are those of
`tests/conversations/files.py`. docs/how-to/conversations.md has what came out for six tokenizers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.conversations import example_of_row
from tests.conversations.files import FILES, USES, Row


def encoded(codec: Codec, row: Row, algorithm: str, side: str | None) -> list[list[int]] | str:
    """Return the tokens and the places of those with loss; a text where the row is refused."""
    try:
        if algorithm == "grpo":
            return [codec.encode_prompt(row["prompt"]), []]
        ids, learned = codec.encode_example(example_of_row(row, side))
    except EngineError as error:
        return str(error)
    return [ids, [] if algorithm == "reward_model" else [place for place, flag in enumerate(learned) if flag]]


def shown(codec: Codec, made: list[list[int]] | str) -> str:
    """Return what is learned of a row; all of it where nothing is."""
    if isinstance(made, str):
        return f"refused: {made}"
    ids, places = made
    return repr(codec.tokenizer.convert_ids_to_tokens([ids[place] for place in places] or ids))


def main() -> None:
    from transformers import AutoTokenizer

    codec = Codec(AutoTokenizer.from_pretrained(sys.argv[1]))
    trl: dict[str, Any] = json.loads(Path(sys.argv[2]).read_text("utf-8"))
    same = 0
    for algorithm, files in USES.items():
        sides = ("chosen", "rejected") if algorithm in ("dpo", "reward_model") else (None,)
        for file in files:
            made = [encoded(codec, row, algorithm, side) for row in FILES[file] for side in sides]
            theirs = trl[f"{algorithm} {file}"]
            theirs = [theirs] * len(made) if isinstance(theirs, str) else theirs
            for number, (ours, other) in enumerate(zip(made, theirs, strict=True)):
                if ours == other:
                    same += 1
                    continue
                print(f"{algorithm} {file} {number}\n  here {shown(codec, ours)}\n  TRL  {shown(codec, other)}")
    print(f"{same} the same")


if __name__ == "__main__":
    main()
