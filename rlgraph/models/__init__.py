"""What is known of a model without loading it: its numbers, its parameters, and how each engine lays them out."""
