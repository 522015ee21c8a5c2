"""Principals: who asks, how a server knows, and what each may do."""
