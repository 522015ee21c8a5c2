"""The native API: what is served, sessions, runs and decisions; `live` streams a session."""
