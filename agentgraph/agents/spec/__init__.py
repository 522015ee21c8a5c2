"""What a user writes of an agent, and what is checked about it; nothing here knows a graph."""
