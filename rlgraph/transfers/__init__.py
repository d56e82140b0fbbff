"""What travels between two layouts, weights and rows alike: which part goes where, and in which rounds."""
