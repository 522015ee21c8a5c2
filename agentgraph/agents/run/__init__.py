"""Runs of an agent on threads: one at a time on each, and nothing of an unfinished one is lost."""
