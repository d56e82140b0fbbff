"""From an engine's name to what it says of itself; loads no torch."""
