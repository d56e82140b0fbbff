"""The graph that every stage reads and makes: axes and types, expressions, nodes, programs; how they print and
verify."""
