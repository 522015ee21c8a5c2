"""Intents: phrases that the router follows without asking a model."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

IntentKind: TypeAlias = Literal["agent", "tool", "raw"]
Matcher: TypeAlias = Callable[[str, str], bool]


def same_words(message: str, phrase: str) -> bool:
    """Compare two texts without case, spaces and punctuation."""
    return _letters(message) == _letters(phrase)


@dataclass(frozen=True, slots=True)
class Intent:
    """The action for a message that matches a phrase.

        Agent("desk", agents=[billing], intents=[Intent("my invoice", "agent", "billing")])

    An `agent` intent enters the sub-agent `target`, a `tool` intent calls the tool `target` (one
    that needs no arguments), a `raw` intent answers with the text `target`. The matcher is asked
    `matcher(message, phrase)`.
    """

    phrase: str
    kind: IntentKind
    target: str
    matcher: Matcher = same_words

    def matches(self, message: str) -> bool:
        """Tell whether a message matches the phrase."""
        return self.matcher(message, self.phrase)


def _letters(text: str) -> str:
    lower_text = unicodedata.normalize("NFC", text).casefold()
    return "".join(c for c in lower_text if unicodedata.category(c)[0] not in "PZC")
