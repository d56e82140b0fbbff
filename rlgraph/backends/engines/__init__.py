"""From token sequences to samples, log-probabilities and gradients: each engine runs one model, and knows no graph."""
