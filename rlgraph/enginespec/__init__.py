"""What engines say of themselves, and where they are found. Loads no torch."""
