"""What this machine takes for work of known sizes, and the constants of the cost model from that."""
