"""The answer in a result: what is left without time stamps, ids, ages and timings; its counter.

"Nothing found (10:15:02, request 4f81c0de)" and the same a minute later are one answer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agentgraph.guards.mechanisms.canonical import exact_digest

_LONGEST = 4_000
"""What follows this many characters is compared exactly, so that the time for it is bounded."""
_VOLATILE = re.compile(
    r"""
      \d{4}-\d\d-\d\d[T\ ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|\ ?[+-]\d\d:?\d\d)?   # instant
    | \b\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\ ?[ap]m)?\b                             # clock
    | \b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b                               # UUID
    | \b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b                                      # hash
    | \b(?=[a-z_]*\d)(?=\d*[a-z_])\w{12,}\b                                         # random id
    | \b\d{10,}(?:\.\d+)?\b                                                         # epoch, long id
    | \#\d+\b | \b[a-z]+[-_]\d{3,}\b                                                # number as id
    | \b\d+(?:\.\d+)?\ ?(?:ms|µs|us|ns)\b | \b\d+\.\d+\ ?s(?:ec(?:onds)?)?\b        # timing
    | \b\d+(?:\.\d+)?\ ?(?:s|sec|min|h|(?:second|minute|hour|day)s?)\ ago\b          # age
    """,
    re.VERBOSE | re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"\d+")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_FEWEST_WORDS = 2
"""A result with fewer words beside what was removed tells nothing else, as a clock's does."""
_FEWEST_WORDS_COUNTED = 4
"""With fewer words the number may be the answer, and no counter beside it."""
_MOST_NUMBERS = 8


class Count(NamedTuple):
    """The numbers in an answer, and a digest of the text around them."""

    text: str
    numbers: tuple[int, ...]

    def is_next_of(self, earlier: Count) -> bool:
        """Tell whether only a counter of calls has moved: one number, by one.

        A number that approaches another one, such as a page's, is progress.
        """
        if self.text != earlier.text or len(self.numbers) != len(earlier.numbers):
            return False
        pairs = list(zip(self.numbers, earlier.numbers, strict=True))
        steps = [now - before for now, before in pairs if now != before]
        counters = [now for now, before in pairs if now != before]
        return steps == [1] and all(now < counters[0] for now, before in pairs if now == before)


def answer_in(text: str) -> str:
    """Return a result without what differs each time that it is asked for."""
    if not _DIGIT.search(text):
        return text
    head = _VOLATILE.sub("", text[:_LONGEST])
    if len(head) == min(len(text), _LONGEST) or len(_LETTERS.findall(head)) < _FEWEST_WORDS:
        return text
    return head + text[_LONGEST:]


def count_in(answer: str) -> Count | None:
    """Return the numbers of an answer, None where none of them could be a counter of calls."""
    head = answer[:_LONGEST]
    numbers = _NUMBER.findall(head)
    if not 0 < len(numbers) <= _MOST_NUMBERS or "%" in head or max(map(len, numbers)) > 9:
        return None
    if len(_LETTERS.findall(head)) < _FEWEST_WORDS_COUNTED:
        return None
    text = exact_digest(_NUMBER.sub("0", head) + answer[_LONGEST:])[:12]
    return Count(text, tuple(map(int, numbers)))
