"""The routes of agents: a turn that lives as long as its connection."""
