"""Tables of known models and devices: from a name to published numbers, none of which is measured here."""
