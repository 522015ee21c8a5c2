"""The wording of a question, to tell whether another one asks for the same in other words.

Order, case, punctuation and stop words do not count. Numbers, single values and code are compared
exactly. A wording with more words than another may ask for more: both are alike, and not the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from agentgraph.guards.mechanisms.canonical import canonical

_WORD = re.compile(r"\d[\d.,:/-]*\d|\w+")
_CODE = re.compile(r"[=+*<>()\[\]{}|&%$@~^\\#;\n]")
_END_OF_WORD = re.compile(r"[.,;:!?…\"']+(?=\s|$)")
_LONGEST = 400
"""A text with more characters is a document, and compared exactly."""
_MOST_WORDS = 40
_FEWEST_SHARED = 2
_MOST_LONGER = 3
"""How many times as many words a wording may have as one that it contains."""

_WORDS = """
a about again also am an and another any are aren as ask asks at be because been being both but by
can could did didn do does doesn doing don else for from get gets had hadn has hasn have haven
having he her here hers herself him himself his how i if into is isn it its itself just let like me
must my myself now of one or ought our ours ourselves please shall shan she should shouldn so some
such tell tells than that the their them themselves then there therefore these they thing things
this those thus to too upon us very want wants was wasn we were weren what when where which while
who whom whose why will with would wouldn yes you your yours yourself yourselves
"""
_STOP_WORDS = frozenset(_WORDS.split())
"""English words that say nothing by themselves; those that tell two questions apart, such as "not",
"before" or "all", are none of them."""


def words_of(args: object) -> str:
    """Return the words of a question as numbers: those that count exactly, "|", and the others."""
    exact, loose = set[str](), set[str]()
    for name, value in args.items() if isinstance(args, Mapping) else [("", args)]:
        is_prose = isinstance(value, str) and len(value) <= _LONGEST and not _CODE.search(value)
        _add_words(str(name), value, exact, loose, is_prose=is_prose)
    return _text_of(exact, loose)


def words_of_brief(brief: str) -> str:
    """Return the words of a brief in the same form; braces and the like are no code in it."""
    exact, loose = set[str](), set[str]()
    _add_words("", brief, exact, loose, is_prose=len(brief) <= _LONGEST)
    return _text_of(exact, loose)


def spelling_free(text: str) -> str:
    """Return a text without case, white space and the punctuation at the ends of its words."""
    return " ".join(_END_OF_WORD.sub("", text.casefold()).split())


def _text_of(exact: set[str], loose: set[str]) -> str:
    return f"{' '.join(sorted(exact))}|{' '.join(sorted(loose))}"


def _add_words(
    name: str, value: object, exact: set[str], loose: set[str], *, is_prose: bool
) -> None:
    text = value if isinstance(value, str) else ""
    words = _WORD.findall(text.casefold()) if is_prose else []
    seed = crc32(name.encode(errors="replace"))
    if not 1 < len(words) <= _MOST_WORDS:
        exact.add(_number(words[0] if words else text or canonical(value), seed))
        return
    exact.add(_number("", seed))
    content = [word for word in words if word not in _STOP_WORDS]
    for word in content if len(content) >= _FEWEST_SHARED else words:
        (exact if word[0].isdigit() else loose).add(_number(word, seed))


def _number(word: str, seed: int) -> str:
    return f"{crc32(word.encode(errors='replace'), seed):x}"


class Likeness(NamedTuple):
    """How a wording compares with earlier ones."""

    same_at: int | None
    """The position of the last one with the same words in any order, None without one."""
    alike: int
    """How many have all its words, or only words that it has too."""


def compare(words: str, earlier: Sequence[str]) -> Likeness:
    """Compare a wording with earlier ones."""
    exact_words = words[: words.find("|") + 1]
    own = _loose_words(words)
    same_at, alike = None, 0
    for position, other_words in enumerate(earlier):
        if not other_words.startswith(exact_words):
            continue
        if words == other_words:
            same_at, alike = position, alike + 1
            continue
        their_words = _loose_words(other_words)
        fewest, most = (own, their_words) if len(own) < len(their_words) else (their_words, own)
        is_comparable = _FEWEST_SHARED <= len(fewest) >= len(most) / _MOST_LONGER
        alike += is_comparable and fewest < most
    return Likeness(same_at, alike)


@lru_cache(maxsize=512)
def _loose_words(words: str) -> frozenset[str]:
    return frozenset(words.partition("|")[2].split())
