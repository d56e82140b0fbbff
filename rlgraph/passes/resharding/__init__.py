"""From two layouts of weights or rows to what travels between them, from where to where, in which rounds."""
