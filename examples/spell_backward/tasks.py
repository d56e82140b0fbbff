"""Words to spell backward, from reasoning_gym: the bare word as the prompt, and a split by word.

reasoning_gym draws words with repetition, so two ranges of its rows share words. Here a word is held out for good by a
checksum of its letters.
"""

from random import Random
from string import ascii_lowercase
from zlib import crc32

import reasoning_gym


def words(split: str, size: int) -> list[dict]:
    """`size` rows of the split "train" or "held_out", with the columns that the task's own verifier wants."""
    rows: list[dict] = []
    tasks = reasoning_gym.create_dataset("spell_backward", size=20 * size, seed=0, min_word_len=3, max_word_len=5)
    seen: set[str] = set()
    for index in range(len(tasks)):
        entry = tasks[index]
        word = entry["metadata"]["word"]
        held_out = crc32(word.encode()) % 5 == 0
        if held_out == (split == "held_out") and word not in seen:
            seen.add(word)
            rows.append({"prompt": f"{word}>", "answer": entry["answer"], "task": "spell_backward",
                         "metadata": entry["metadata"], "index": index})
        if len(rows) == size:
            break
    return rows


def pairs(size: int, each: int = 8) -> list[dict]:
    """`each` pairs for every training word: the right answer, and one that the task's verifier likes less."""
    verifier = reasoning_gym.create_dataset("spell_backward", size=1, seed=0)
    found = []
    for row in words("train", size):
        draw = Random(row["prompt"])
        entry = {"question": row["prompt"], "answer": row["answer"], "metadata": row["metadata"]}
        best = verifier.score_answer(row["answer"], entry)
        spoilt = [_spoilt(row["answer"], draw, 1 + draw.randrange(3)) for _ in range(each)]
        found += [
            {"prompt": row["prompt"], "chosen": row["answer"], "rejected": answer}
            for answer in spoilt
            if verifier.score_answer(answer, entry) < best
        ]
    return found


def _spoilt(answer: str, draw: Random, times: int) -> str:
    """An answer with letters changed, dropped, doubled or swapped, as a beginner's would be; `times` 0 leaves it right."""
    letters = list(answer)
    for _ in range(times):
        at, kind = draw.randrange(len(letters)), draw.randrange(4)
        if kind == 0:
            letters[at] = draw.choice(ascii_lowercase)
        elif kind == 1 and len(letters) > 1:
            del letters[at]
        elif kind == 2 and len(letters) < 8:
            letters.insert(at, draw.choice(ascii_lowercase))
        else:
            other = draw.randrange(len(letters))
            letters[at], letters[other] = letters[other], letters[at]
    return "".join(letters)
