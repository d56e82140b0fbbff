"""The search for the fastest plan: which work shares which devices, how many they are, how each model is split
there."""
