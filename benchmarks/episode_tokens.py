"""Whether the tokens of an episode are those of its whole conversation, for random conversations in a model's template.

    python benchmarks/episode_tokens.py NAME=FOLDER_OF_A_TOKENIZER ... [--count 200]

An episode is made as a run makes it: the prompt, then what is sampled (each answer as tokens, with its end), then what
the template writes up to the next answer. It is compared with the tokens of all messages rendered at once. The
conversations have a system prompt or none, empty answers and observations, texts of special tokens, Unicode, line
breaks at both ends, thinking, and what tools return where the template takes it. The file of a GGUF model is named as
FOLDER/FILE.gguf. A row of the table is a tokenizer. Of conversations whose answers have no thinking and no blanks at
their ends all should be the same. What is not the same has a cause, and one example of each is printed.

docs/how-to/environments.md has what came out for six tokenizers.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlgraph.backends.engines.chat import special_token_texts
from rlgraph.backends.engines.errors import ConversationError, EngineError
from rlgraph.backends.engines.tokenizers import Codec, special_tokens_in
from rlgraph.backends.engines.turns import without_end_of_turn

WORDS = [
    "guess",
    "4",
    "more",
    "less",
    "größer",
    "数字",
    "🙂",
    "e\u0301",
    "x = 1;",
    "\t",
    "  ",
    "\n",
    "\n\n",
    "`a`",
    "العدد",
]
Messages = list[dict[str, Any]]
Pairs = list[tuple[str, Messages]]


def drawn_text(draw: random.Random, names: tuple[str, ...], *, special: bool = True) -> str:
    """Return a text of a few words, often with blanks or line breaks at its ends; empty now and then."""
    if draw.random() < 0.08:
        return ""
    words = [draw.choice(WORDS) for _ in range(draw.randint(1, 8))]
    if special and draw.random() < 0.2:
        words.insert(draw.randrange(len(words) + 1), draw.choice(names))
    return draw.choice([" ", "", "\n"]).join(words)


def drawn_conversation(draw: random.Random, names: tuple[str, ...], tools: bool) -> tuple[Messages, Pairs]:
    """Return what an episode begins with, and pairs of an answer and what replies to it. tools: whether a tool may."""
    asked = [{"role": "user", "content": drawn_text(draw, names)}]
    if draw.random() < 0.5:
        asked.insert(0, {"role": "system", "content": drawn_text(draw, names)})
    pairs: Pairs = []
    thinks, plain = draw.random() < 0.3, draw.random() < 0.4
    for _ in range(draw.randint(1, 5)):
        answer = drawn_text(draw, names, special=False)
        answer = answer.strip() if plain else answer
        if thinks and not plain and draw.random() < 0.7:
            answer = f"<think>\n{drawn_text(draw, names, special=False)}\n</think>\n\n{answer}"
        role, replies = ("tool", draw.randint(1, 2)) if tools and draw.random() < 0.3 else ("user", 1)
        pairs.append((answer, [{"role": role, "content": drawn_text(draw, names)} for _ in range(replies)]))
    return asked, pairs


def end_of_turn(codec: Codec) -> int:
    """Return the token that the template ends an answer with, which is what a model samples there."""
    return codec.encode_between_answers([{"role": "user", "content": "a"}], [[{"role": "user", "content": "b"}]])[0]


def takes_tools(codec: Codec) -> bool:
    """Return whether the template writes what a tool returns."""
    try:
        codec.encode_between_answers([{"role": "user", "content": "a"}], [[{"role": "tool", "content": "b"}]])
    except EngineError:
        return False
    return True


def episode(codec: Codec, asked: Messages, pairs: Pairs, end: int) -> tuple[list[int], str]:
    """Return the tokens of an episode, and its text as it is sampled and written."""
    tokens = codec.encode_prompt(asked)
    replies: list[Messages] = []
    written = list(tokens)
    for answer, reply in pairs:
        tokens += [*codec.encode_text(answer), end]
        replies.append(reply)
        piece = codec.encode_between_answers(asked, replies)
        written += piece
        tokens += without_end_of_turn(piece, tokens)
    codec.check_episode(written, asked, replies)
    return tokens, str(codec.tokenizer.decode(tokens))


def cause(codec: Codec, made: list[int], whole: list[int], pairs: Pairs) -> str:
    """Return why an episode is not the rendering of its conversation, in words."""
    texts = [str(codec.tokenizer.decode(ids)) for ids in (made, whole)]
    if special_tokens_in(codec.tokenizer, made) != special_tokens_in(codec.tokenizer, whole):
        return "OTHER SPECIAL TOKENS"
    if texts[0] == texts[1]:
        return "a token reaches over the border of an answer"
    if texts[0].count("<think>") != texts[1].count("<think>"):
        return "the template drops earlier thinking"
    if any("<think>" in answer for answer, _ in pairs):
        return "the template trims thinking"
    if any(answer != answer.strip() for answer, _ in pairs):
        return "the template trims an answer"
    return "OTHER TEXT"


def main() -> None:
    arguments = sys.argv[1:]
    count = int(arguments.pop(arguments.index("--count") + 1)) if "--count" in arguments else 200
    print("| tokenizer | plain answers: the same | all: the same | not the same, because |\n|---|---|---|---|")
    examples: dict[str, str] = {}
    for name, _, folder in (argument.partition("=") for argument in arguments if argument != "--count"):
        causes: Counter[str] = Counter()
        codec = Codec(opened(folder))
        names, end, tools = special_token_texts(codec.tokenizer), end_of_turn(codec), takes_tools(codec)
        plain: Counter[bool] = Counter()
        for number in range(count):
            asked, pairs = drawn_conversation(random.Random(number), names, tools)
            messages = [*asked]
            for answer, reply in pairs:
                messages += [{"role": "assistant", "content": answer}, *reply]
            try:
                made, text = episode(codec, asked, pairs, end)
            except ConversationError as error:
                causes[f"refused: {error.code}"] += 1
                examples.setdefault(f"{name}: refused", str(error))
                continue
            whole = codec.encode_prompt(messages)
            if all(answer == answer.strip() and "<think>" not in answer for answer, _ in pairs):
                plain[made == whole] += 1
            if made == whole:
                causes["same"] += 1
                continue
            why = cause(codec, made, whole, pairs)
            causes[why] += 1
            there = next((at for at, (a, b) in enumerate(zip(made, whole, strict=False)) if a != b), len(whole))
            sides = [codec.tokenizer.convert_ids_to_tokens(ids[max(0, there - 3) : there + 6]) for ids in (made, whole)]
            examples.setdefault(f"{name}: {why}", f"episode {sides[0]}\n    whole   {sides[1]}")
        same = causes.pop("same", 0)
        plainly = f"{plain[True]} of {plain.total()}"
        others = "; ".join(f"{why} ({number})" for why, number in causes.most_common())
        print(f"| {name} | {plainly} | {same} of {count} | {others} |")
    for title, example in examples.items():
        print(f"\n{title}\n    {example}")


def opened(folder: str) -> Any:
    """Return the tokenizer of a folder, or of a GGUF file."""
    from transformers import AutoTokenizer

    path = Path(folder)
    if path.suffix == ".gguf":
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return AutoTokenizer.from_pretrained(folder)


if __name__ == "__main__":
    main()
