"""The packages that run a compiled program and write what it leaves: a folder, metrics, models and a timeline."""
