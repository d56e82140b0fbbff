"""Engines that turn token sequences into samples, log-probabilities and gradients: each runs one model, and knows no
graph."""
