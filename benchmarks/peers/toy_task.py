"""The toy task in rlgraph's shape: the prompts as rows, and the share of wanted tokens as the reward."""

import toy


def prompts(count: int = 64) -> list[dict]:
    return [{"prompt": text} for text in toy.prompt_texts(count)]


def wanted(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [toy.reward_ids(ids) for ids in completion_ids]
