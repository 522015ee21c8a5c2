"""Runs of an agent: one at a time on each thread, and the work of an unfinished run is kept."""
