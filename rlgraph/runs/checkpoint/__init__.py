"""Checkpoints: a run's state is written to files between two steps, and a run is resumed from them."""
