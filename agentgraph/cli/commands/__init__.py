"""The commands, one module each: a function with typer's annotations, and what it calls.

Each runs its work in `errors_reported`, and reads a store by `log_reader`.
"""
