"""The commands, one module each: a function with typer's annotations, and its helpers.

Each command runs its work inside `errors_reported`, and opens a store with `log_reader`.
"""
