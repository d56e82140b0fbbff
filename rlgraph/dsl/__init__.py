"""From text of a `.rlf` or `.rls` file to a typed graph or a schedule, or to diagnostics; and to tidy text."""
