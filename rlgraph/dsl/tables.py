"""The parser, made from `grammar.lark`.

Making the LALR tables takes longer than checking a program, so they are kept beside the grammar, in
`grammar.json`. `python -m rlgraph.dsl.tables` writes them anew. Where they do not belong to the grammar or to
the installed lark, the grammar itself is read.
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
    """The parser of files and of expressions, made once for each process."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    return from_tables(grammar) or from_grammar(grammar)


def from_grammar(grammar: str) -> lark.Lark:
    """The slow way."""
    return lark.Lark(
        grammar,
        parser="lalr",
        lexer="basic",
        start=["file", "expression"],
        keep_all_tokens=True,
        maybe_placeholders=False,
    )


def from_tables(grammar: str) -> lark.Lark | None:
    """The quick way, where there are tables of just this grammar."""
    if not lark.__version__.startswith(LARKS) or not TABLES.exists():
        return None
    kept = json.loads(TABLES.read_text(encoding="utf-8"), object_hook=_numbered)
    if kept["grammar"] != _fingerprint(grammar):
        return None
    load: Callable[..., lark.Lark] = lark.Lark._load_from_dict
    return load(kept["data"], kept["memo"])


def write() -> None:
    """Write the tables of the grammar as it is now."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    data, memo = from_grammar(grammar).memo_serialize([lark.lexer.TerminalDef, lark.grammar.Rule])
    kept = {"grammar": _fingerprint(grammar), "data": data, "memo": memo}
    TABLES.write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")


def _fingerprint(grammar: str) -> int:
    # Not a hash of `hashlib`: importing that takes longer than reading the tables.
    return zlib.crc32("".join(grammar.split("\r")).encode())


def _numbered(kept: dict[str, Any]) -> dict[Any, Any]:
    """With the keys that are numbers as numbers again: JSON has none. An object has only such keys, or none."""
    return {int(key): value for key, value in kept.items()} if next(iter(kept), "").isdecimal() else kept


if __name__ == "__main__":
    write()
