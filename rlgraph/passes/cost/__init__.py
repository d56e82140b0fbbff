"""From work on devices to seconds and bytes, by formulas: nothing here runs anything."""
