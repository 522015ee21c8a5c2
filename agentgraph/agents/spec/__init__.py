"""The specification of an agent as a user writes it, and its checks; nothing here knows a graph."""
