"""Models of runs as folders that other programs load, on the hub, and as GGUF files."""
