"""Plans transfers between two layouts of weights or rows: what is sent from where to where, in which rounds."""
