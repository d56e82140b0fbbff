"""From a graph to text that a person reads, or to plain data, and from that text back to the graph."""
