"""Whether a function that somebody gives can be called as it is going to be."""

from __future__ import annotations

import inspect

__all__ = ["takes_one"]


def takes_one(function: object) -> bool:
    """Tell whether it can be called with one argument, as far as it says what it takes."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # some that are written in C have none
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True
