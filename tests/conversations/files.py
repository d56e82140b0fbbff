"""Files of rows as people publish them: the shapes of TRL's page on dataset formats, and those of verl's examples.

They run without this package: `benchmarks/trl_tokens.py` has TRL read the same rows.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def says(text: str) -> Row:
    return {"role": "assistant", "content": text}


def system(text: str) -> Row:
    return {"role": "system", "content": text}


_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

FILES: dict[str, list[Row]] = {
    "text": [
        {"text": "The sky is blue."},
        {"text": "def add(a, b):\n    return a + b\n"},
    ],
    "messages": [
        {"messages": [user("What color is the sky?"), says("It is blue.")]},
        {"messages": [system("Answer in one word."), user("2+2?"), says("4")]},
    ],
    "turns": [
        {"messages": [user("Hi, who are you?"), says("I am a model."), user("  And now?\n"), says("Still a model.")]},
        {
            "messages": [
                system("Be brief."),
                user("1+1?"),
                says("2"),
                user("And 2+2?"),
                says("4"),
                user("Bye"),
                says(" Bye!\n"),
            ]
        },
    ],
    "prompt": [
        {"prompt": "The sky is"},
        {"prompt": "2+2="},
    ],
    "prompt_messages": [
        {"prompt": [user("What color is the sky?")]},
        {"prompt": [system("Answer with a number."), user("2+2?")]},
    ],
    "completion": [
        {"prompt": "The sky is", "completion": " blue."},
        {"prompt": "Translate to French:\n\nHouse\n\n", "completion": "Maison"},
    ],
    "completion_messages": [
        {"prompt": [user("What color is the sky?")], "completion": [says("It is blue.")]},
        {"prompt": [user("1+1?"), says("2"), user("And 2+2?")], "completion": [says("4")]},
    ],
    "preference": [
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        {"prompt": "Two is", "chosen": " even", "rejected": " odd, I think"},
    ],
    "preference_messages": [
        {
            "prompt": [user("What color is the sky?")],
            "chosen": [says("It is blue.")],
            "rejected": [says("It is green.")],
        },
        {
            "prompt": [system("Be kind."), user("Hi"), says("Hello!"), user("How are you?")],
            "chosen": [says("Well, thank you.")],
            "rejected": [says("None of your business.")],
        },
    ],
    "implicit": [
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        {"chosen": "Two is even", "rejected": "Two is odd, I think"},
    ],
    "implicit_messages": [
        {
            "chosen": [user("What color is the sky?"), says("It is blue.")],
            "rejected": [user("What color is the sky?"), says("It is green.")],
        },
        {
            "chosen": [user("Hi"), says("Hello!"), user("How are you?"), says("Well, thank you.")],
            "rejected": [user("Hi"), says("Hello!"), user("How are you?"), says("None of your business.")],
        },
    ],
    "unpaired": [
        {"prompt": "The sky is", "completion": " blue.", "label": True},
        {"prompt": "The sky is", "completion": " green.", "label": False},
    ],
    "unpaired_messages": [
        {"prompt": [user("What color is the sky?")], "completion": [says("It is blue.")], "label": True},
        {"prompt": [user("What color is the sky?")], "completion": [says("It is green.")], "label": False},
    ],
    "tools": [
        {
            "messages": [
                user("How is the weather in Rome?"),
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
                    ],
                },
                {"role": "tool", "name": "weather", "content": "sunny"},
                says("It is sunny in Rome."),
            ],
            "tools": [_WEATHER],
        }
    ],
    "verl_gsm8k": [
        {
            "data_source": "openai/gsm8k",
            "prompt": [
                user('How many are 2 and 3?\nLet\'s think step by step and output the final answer after "####".')
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "5"},
            "extra_info": {
                "split": "train",
                "index": 0,
                "answer": "2+3 = 5\n#### 5",
                "question": "How many are 2 and 3?",
            },
        }
    ],
    "verl_sft": [
        {"prompt": "How many are 2 and 3?", "response": "2+3 = 5\n#### 5"},
    ],
}
"""Rows by the name of their file."""

USES: dict[str, tuple[str, ...]] = {
    "sft": (
        "text",
        "messages",
        "turns",
        "completion",
        "completion_messages",
        "unpaired",
        "unpaired_messages",
        "tools",
        "verl_sft",
    ),
    "reward_model": ("preference", "preference_messages", "implicit", "implicit_messages"),
    "dpo": ("preference", "preference_messages", "implicit", "implicit_messages"),
    "grpo": ("prompt", "prompt_messages", "verl_gsm8k"),
}
"""The files that each algorithm is given."""  # fmt: skip
