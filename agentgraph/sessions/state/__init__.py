"""What a session is, as values: envelopes, the fold over them, and views of them. No I/O.

An envelope is drafted (`draft`), decided on by the team's rules (`rules`), collected with others on
a page (`page`), and folded into the state (`fold`, `state`).
"""
