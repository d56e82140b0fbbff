"""From measured work on this machine to constants of the cost model."""
