"""The rounds of a session: admission from the inbox, the owned session, and one speaker's turn."""
