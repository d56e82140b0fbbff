"""Has TRL make tokens and loss masks of the rows in `tests/conversations/files.py`, and writes them as JSON.

    python benchmarks/trl_tokens.py FOLDER_OF_A_TOKENIZER [TRAINING_TEMPLATE] > tests/conversations/trl/NAME.json

It needs trl 1.16 (`pip install --no-deps trl==1.16.*`, accelerate, datasets) and nothing of this package. Of each row
and algorithm there are the tokens, and the places of those with loss. TRL's first token never carries loss, since
nothing comes before it. SFT of conversations runs with `assistant_only_loss`, and where the template has no marks with
TRL's own training template: the one that it has for it, or the one that is named (`qwen3_training`, or a file).
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.conversations.files import FILES, USES

Encoded = tuple[list[int], list[int]]


def _training_template(tokenizer: Any) -> str | None:
    """Return the template that TRL trains with."""
    import trl.chat_template_utils as templates

    if len(sys.argv) > 2:
        shipped = Path(templates.__file__).parent / "chat_templates" / f"{sys.argv[2]}.jinja"
        return (shipped if shipped.exists() else Path(sys.argv[2])).read_text()
    return templates.get_training_chat_template(processing_class=tokenizer)


def _prepared(trainer: Any, rows: list[Any], tokenizer: Any, **settings: Any) -> list[dict[str, Any]]:
    """Return the rows as a trainer's class prepares them."""
    from datasets import Dataset

    config = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start", **settings)
    owner = SimpleNamespace(
        _tokenizer=tokenizer,
        chat_template=settings.get("chat_template"),
        completion_only_loss=True,
        calculate_KL=False,
    )
    made = []
    for row in rows:  # One at a time: a table would fill up what some rows lack.
        made += list(_call(trainer, owner, Dataset.from_list([copy.deepcopy(row)]), tokenizer, config))
    return made


def _call(trainer: Any, owner: Any, rows: Any, tokenizer: Any, config: Any) -> Any:
    if trainer.__name__ == "SFTTrainer":
        return trainer._prepare_dataset(owner, rows, tokenizer, config, False, None, "train")
    return trainer._prepare_dataset(owner, rows, tokenizer, config, "train")


def sft(rows: list[Any], tokenizer: Any) -> list[Encoded]:
    from trl import SFTTrainer

    # TRL calls an answer `completion`.
    rows = [{("completion" if name == "response" else name): value for name, value in row.items()} for row in rows]
    whole = "messages" in rows[0]
    template = _training_template(tokenizer) if whole else None
    settings = {"assistant_only_loss": whole, "dataset_text_field": "text", "chat_template": template}
    settings |= {"packing": False, "dataset_kwargs": None, "eos_token": None, "shuffle_dataset": False}
    made = _prepared(SFTTrainer, rows, tokenizer, **settings)
    return [(row["input_ids"], [at for at, label in enumerate(row["labels"]) if at and label != -100]) for row in made]


def dpo(rows: list[Any], tokenizer: Any) -> list[Encoded]:
    from trl import DPOTrainer

    made = _prepared(DPOTrainer, rows, tokenizer)
    return [
        (row["prompt_ids"] + row[side], [len(row["prompt_ids"]) + at for at in range(len(row[side]))])
        for row in made
        for side in ("chosen_ids", "rejected_ids")
    ]


def reward_model(rows: list[Any], tokenizer: Any) -> list[Encoded]:
    from trl import RewardTrainer

    made = _prepared(RewardTrainer, rows, tokenizer)
    return [(row[side], []) for row in made for side in ("chosen_ids", "rejected_ids")]


def grpo(rows: list[Any], tokenizer: Any) -> list[Encoded]:
    prompts = [row["prompt"] for row in rows]
    if isinstance(prompts[0], str):
        return [(tokenizer(text=prompt)["input_ids"], []) for prompt in prompts]
    return [
        (tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True)["input_ids"], [])
        for prompt in prompts
    ]


def main() -> None:
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    algorithms = {"sft": sft, "reward_model": reward_model, "dpo": dpo, "grpo": grpo}
    made: dict[str, Any] = {}
    for name, files in USES.items():
        for file in files:
            try:
                made[f"{name} {file}"] = algorithms[name](FILES[file], tokenizer)
            except Exception as error:  # What TRL refuses is a result, too.
                made[f"{name} {file}"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items())
    print(f"{{\n{lines}\n}}")


if __name__ == "__main__":
    main()
