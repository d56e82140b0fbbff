"""Makes the parser from `grammar.lark`.

Making the LALR tables takes longer than checking a program, so they are kept beside the grammar, in `grammar.json`.
`python -m rlgraph.dsl.lark_parser` writes them anew. Where they do not belong to the grammar or to the installed lark,
the grammar itself is read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lark

GRAMMAR = Path(__file__).with_name("grammar.lark")
TABLES = Path(__file__).with_name("grammar.json")
LARKS = ("1.2.", "1.3.")
"""The versions of lark that read the same tables."""


@cache
def parser() -> lark.Lark:
    """Return the parser of files and of expressions, made once for each process."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    return parser_from_tables(grammar) or parser_from_grammar(grammar)


def parser_from_grammar(grammar: str) -> lark.Lark:
    """Make the parser from the grammar, which is slow."""
    return lark.Lark(
        grammar,
        parser="lalr",
        lexer="basic",
        start=["file", "expression"],
        keep_all_tokens=True,
        maybe_placeholders=False,
    )


def parser_from_tables(grammar: str) -> lark.Lark | None:
    """Make the parser from the tables, which is fast; None if there are none of this grammar."""
    if not lark.__version__.startswith(LARKS) or not TABLES.exists():
        return None
    stored = json.loads(TABLES.read_text(encoding="utf-8"), object_hook=_integer_keys)
    if stored["grammar"] != _fingerprint(grammar):
        return None
    load: Callable[..., lark.Lark] = lark.Lark._load_from_dict
    return load(stored["data"], stored["memo"])


def write_parser_tables() -> None:
    """Write the tables of the present grammar."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    data, memo = parser_from_grammar(grammar).memo_serialize([lark.lexer.TerminalDef, lark.grammar.Rule])
    stored = {"grammar": _fingerprint(grammar), "data": data, "memo": memo}
    TABLES.write_text(json.dumps(stored, separators=(",", ":")) + "\n", encoding="utf-8")


def _fingerprint(grammar: str) -> int:
    # Not a hash of `hashlib`: importing that takes longer than reading the tables.
    return zlib.crc32("".join(grammar.split("\r")).encode())


def _integer_keys(parsed: dict[str, Any]) -> dict[Any, Any]:
    """Return a parsed object with its keys as numbers again if they are: JSON has none. An object has only such keys,
    or none."""
    return {int(key): value for key, value in parsed.items()} if next(iter(parsed), "").isdecimal() else parsed


if __name__ == "__main__":
    write_parser_tables()
