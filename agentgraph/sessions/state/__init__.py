"""A session as values: envelopes, the fold over them, and views of them. No I/O.

A draft (`draft`) is decided on by the team's rules (`rules`), becomes an envelope of a page
(`page`), and is folded into the state (`fold`, `state`).
"""
