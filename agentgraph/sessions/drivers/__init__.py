"""Who drives a session: one driver for each, under the lease of its hub."""
