"""What a plan is worth: its step in virtual time, why it was chosen, what others lose, and what would help."""
