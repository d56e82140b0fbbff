"""From a model's name or `config.json` to its numbers, its parameters, and how engines lay them out."""
