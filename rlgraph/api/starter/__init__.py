"""A folder to begin with: a program of one's own, with data, a reward and a README, that runs at once on a small chat
model (`rlgraph new`)."""
