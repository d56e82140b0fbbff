"""This package fits the cost model's constants to work that was measured on this machine."""
