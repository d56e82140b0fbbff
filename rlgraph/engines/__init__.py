"""Engines: each runs one model, on token sequences, and knows nothing of graphs."""
