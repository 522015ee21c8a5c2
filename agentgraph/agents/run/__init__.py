"""Runs of an agent on threads."""
