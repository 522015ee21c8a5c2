"""The telling words of a text, by which the offline model compares."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["stems"]

_UNTELLING = """
a about after again agent agents all also always am an and another answer answers any are as ask
asks at be been but by call can case conversation could did do does for from get gets give gives
has have he help helps her him his how i if in into is issue issues it its just know let like list
lists make makes me more my need needs new no not now of on one or other our out over please problem
problems question questions return returns she should show shows so some something talk tell tells
than that the their them then there these they thing things this those to tool tools transfer
transfers up us use used user users uses using want wants was we were what when where which who
whose why will with without would yes you your
"""
_STOP_WORDS = frozenset(_UNTELLING.split())


@lru_cache(maxsize=512)
def stems(text: str) -> frozenset[str]:
    """Return the telling words of a text or name, cut to about their stems."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    words = re.findall(r"[^\W_]+", spaced.lower())
    return frozenset(_stem(word) for word in words if word not in _STOP_WORDS)


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) > len(ending) + 2 and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    if word.endswith("y"):
        return f"{word[:-1]}i"
    doubled = len(word) > 2 and word[-1] == word[-2] and word[-1].isalpha()
    return word[:-1] if doubled else word
