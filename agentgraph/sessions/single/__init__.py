"""Sessions of one: an agent or a graph that answers whoever speaks, and then waits."""
