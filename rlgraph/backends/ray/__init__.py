"""From orders to Ray actors and back: one for each rank; the controller sees references, never rows."""
