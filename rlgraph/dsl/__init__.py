"""The language: the text of a `.rlf` or `.rls` file becomes a typed graph, a schedule, diagnostics or tidy text."""
