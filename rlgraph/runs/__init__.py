"""A run and what it leaves behind: its folder, its metrics and models, its display, its timeline."""
