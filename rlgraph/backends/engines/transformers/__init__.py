"""The engine of Hugging Face models on one machine, which the user's own process uses."""
