"""From the name of a model or a device to its numbers: what is known, and not measured here."""
