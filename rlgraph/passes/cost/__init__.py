"""This package estimates the seconds and bytes of work on devices by formulas; nothing in it runs anything."""
