"""Any Hugging Face model on one machine: the engine of the user's own process."""
