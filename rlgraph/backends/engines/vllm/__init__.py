"""Generation with vLLM: an engine in each rank's own process, whose samples belong to rows and whose parameters lie
open."""
