"""The language: text to syntax tree, syntax tree to typed graph, and text to tidy text."""
