"""Pieces of a text as tokens: each token belongs to one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from rlgraph.backends.engines.chat import TextPiece
from rlgraph.backends.engines.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_ROW = "`model.resize_token_embeddings(len(tokenizer))` gives a model rows for tokens that were added"


def encode_pieces(
    tokenizer: PreTrainedTokenizerBase, pieces: Sequence[TextPiece], *, begin: Sequence[int] = ()
) -> tuple[list[int], list[bool]]:
    """Return the tokens of pieces that are a text together, and for each whether it carries loss. begin: tokens without
    loss with which it begins; a text in which they are written out already has them once.

    The text is split into tokens as a whole. Where a token would reach from one piece into the next, or could be
    another if the text ended there, it ends there: what carries loss begins where the sampler would begin.
    """
    ids: list[int] = []
    learned: list[bool] = []
    for group in _groups(pieces):
        for piece_ids, piece in _encoded(tokenizer, group):
            ids += piece_ids
            learned += [piece.learned] * len(piece_ids)
    if ids[: len(begin)] != list(begin):
        ids, learned = [*begin, *ids], [False] * len(begin) + learned
    return ids, learned


def beginning_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the special tokens that a tokenizer puts before a text. Those that some put behind it end it, and nothing
    is to be asked there."""
    text, whole = (list(tokenizer("a", add_special_tokens=adds)["input_ids"]) for adds in (False, True))
    return next((whole[:place] for place in range(len(whole)) if whole[place:][: len(text)] == text), [])


def _groups(pieces: Sequence[TextPiece]) -> Iterator[list[TextPiece]]:
    """Yield pieces that are split into tokens together: a literal one is alone."""
    group: list[TextPiece] = []
    for piece in pieces:
        if group and (piece.literal or group[-1].literal):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _encoded(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[TextPiece]) -> Iterator[tuple[list[int], TextPiece]]:
    """Yield the tokens of each piece of a group."""
    text = "".join(piece.text for piece in pieces)
    if len(pieces) == 1:
        literal = {"split_special_tokens": True} if pieces[0].literal else {}
        yield list(tokenizer(text, add_special_tokens=False, **literal)["input_ids"]), pieces[0]
        return
    borders = list(accumulate(len(piece.text) for piece in pieces))[:-1]
    if not tokenizer.is_fast:
        yield from _apart(tokenizer, pieces, 1)
        return
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, ends = list(encoded["input_ids"]), list(accumulate((end for _, end in encoded["offset_mapping"]), max))
    places = [0]
    for number, border in enumerate(borders, 1):
        place = next((at for at, end in enumerate(ends) if end > border), len(ids))
        covered = ends[place - 1] if place else 0
        # A tokenizer looks at what follows a blank before it takes it together with the one before.
        blanks = len(text[max(0, border - 2) : border].strip()) == 0 and border > 1
        if covered != border or blanks:
            yield from _apart(tokenizer, pieces, number)
            return
        places.append(place)
    for piece, start, end in zip(pieces, places, [*places[1:], len(ids)], strict=True):
        yield ids[start:end], piece


def _apart(
    tokenizer: PreTrainedTokenizerBase, pieces: Sequence[TextPiece], number: int
) -> Iterator[tuple[list[int], TextPiece]]:
    """Yield the tokens of each piece, where the text ends before piece `number` and begins anew with it."""
    yield from _encoded(tokenizer, pieces[:number])
    yield from _encoded(tokenizer, pieces[number:])


def refuse_unknown_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], rows: int | None) -> None:
    """Raise EngineError for a token that was added to a tokenizer, and not to the model. rows: how many tokens the
    model has; None: all of the tokenizer's."""
    if rows is not None and (most := max(ids, default=0)) >= rows:
        name = tokenizer.convert_ids_to_tokens(most)
        raise EngineError(f"it has {name!r}, token {most:,}, and the model has rows for {rows:,} tokens", NO_ROW)


def refuse_surrogates(text: str) -> None:
    """Raise EngineError for a text with half a character."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise EngineError(f"{text!r:.60} has half of a surrogate pair, which is no character")
