"""Looks up, by an engine's name, what it says of itself; loads no torch."""
