"""Agents and teams in LangGraph's own development server, and remote agents on it."""
