"""Intents: phrases that the router follows without asking a model."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

IntentKind: TypeAlias = Literal["agent", "tool", "raw"]
Matcher: TypeAlias = Callable[[str, str], bool | Awaitable[bool]]


def same_words(message: str, phrase: str) -> bool:
    """Compare two texts without case, spaces and punctuation."""
    return _letters(message) == _letters(phrase)


@dataclass(frozen=True, slots=True)
class Intent:
    """The action for a message that matches a phrase.

        Agent("desk", agents=[billing], intents=[Intent("my invoice", "agent", "billing")])

    An `agent` intent gives the conversation to the agent `target`, by name or path, at any depth
    below this agent. A `tool` intent calls the tool `target`; if the tool needs arguments, the
    model is made to call it. A `raw` intent answers with the text `target`, and the conversation
    stays where it is.

    An agent's intents also hold while an agent below it has the conversation; an intent of that
    agent with the same phrase takes their place. `matcher(message, phrase)`, which may be async,
    replaces the comparison without case, spaces and punctuation. A matcher that raises counts as
    no match.
    """

    phrase: str
    kind: IntentKind
    target: str
    matcher: Matcher = same_words

    def matches(self, message: str) -> bool | Awaitable[bool]:
        """Tell whether a message matches the phrase; await the answer of an async matcher."""
        return self.matcher(message, self.phrase)


def _letters(text: str) -> str:
    lower_text = unicodedata.normalize("NFC", text).casefold()
    return "".join(c for c in lower_text if unicodedata.category(c)[0] not in "PZC")
