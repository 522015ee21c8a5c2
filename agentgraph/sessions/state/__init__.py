"""What a session is, as values: envelopes, the fold over them, and views of them. No I/O."""
