"""Seconds after which what a test waits for does not happen any more, on any machine."""

NEVER = 600.0
