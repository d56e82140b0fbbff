"""The toy reward in the shape of verl's `custom_reward_function`, which sees decoded text."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import toy


def compute_score(data_source=None, solution_str="", ground_truth=None, extra_info=None, **_):
    words = solution_str.split()
    return toy.reward_ids(int(word[1:]) if word[:1] == "t" and word[1:].isdigit() else 0 for word in words)
