"""Words to spell backward, from reasoning_gym: the bare word as the prompt, and a split by word.

reasoning_gym samples words with repetition, so two ranges of its rows share words. Here a word is held out for good by
a checksum of its letters.
"""

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
            rows.append(
                {
                    "prompt": f"{word}>",
                    "answer": entry["answer"],
                    "task": "spell_backward",
                    "metadata": entry["metadata"],
                    "index": index,
                }
            )
        if len(rows) == size:
            break
    return rows
