"""What the notebook's model is rewarded for."""


def echo(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """The share of an answer's letters that are the prompt's letter."""
    return [answer.count(prompt[0]) / max(len(answer), 1) for prompt, answer in zip(prompts, completions, strict=True)]
