"""The explanations of a plan: its step in virtual time, why it was chosen, and what would help."""
