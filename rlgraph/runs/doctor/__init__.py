"""What `rlgraph doctor` looks at: this machine, and of a program its files, models, prompts and rewards."""
