"""Checkpoints of a run: what is in one, how it is written, and how a run goes on from it."""
