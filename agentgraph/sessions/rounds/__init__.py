"""The rounds of a session: who appends to its log, and what one speaker's turn comes to."""
