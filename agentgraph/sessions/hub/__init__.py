"""Who drives the sessions of a store, and who follows them."""
