"""From a plan to answers: its step in virtual time, why it was chosen, and what would help."""
