"""A team: its specification, its graph, and the speakers that its nodes run."""
