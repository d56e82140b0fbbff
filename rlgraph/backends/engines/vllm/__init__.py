"""The engine that generates with vLLM in each rank's own process, where samples belong to rows and others can write the
parameters."""
