"""The graph as text, in the signs of its operations, and as plain data."""
