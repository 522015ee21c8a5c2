"""The hub: drives the sessions of a store, and serves the code that reads and follows them."""
