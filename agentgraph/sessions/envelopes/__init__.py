"""Envelopes: the entries of a session's log, the drafts of their senders, and their data."""
