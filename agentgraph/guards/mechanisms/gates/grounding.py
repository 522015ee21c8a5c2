"""Grounding checks without a model: citations, quotations and numbers are in the documents.

Each function returns a check for `Gate(grounding=…)`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.gates.gate import Grounding, Subject

# In brackets, but not the text of a Markdown link.
_CITATION = r"\[([^\[\]]+)\](?!\()"
_QUOTE = re.compile(r'"([^"]+)"|“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»')
_ELLIPSIS = re.compile(r"\[?(?:\.{3}|…)\]?")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_LIST_MARKER = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_THOUSANDS_BY_POINTS = re.compile(r"\d{1,3}(?:\.\d{3})+,\d+")


def cited_ids(pattern: str = _CITATION, *, least: int = 1) -> Grounding:
    """Return a check that a text cites at least `least` documents, and none that does not exist.

    The pattern's first group matches an id, or several with commas between.
    """
    citation = _compile(pattern)

    def cited_ids(subject: Subject) -> str | None:
        document_ids = {document.id for document in subject.documents}
        ids = set(_ids(citation, subject.text))
        if unknown_ids := sorted(ids - document_ids):
            return f"cites what was not retrieved: {', '.join(unknown_ids)}"
        if len(ids) < least:
            return f"cites {len(ids)} documents: at least {least} must be cited"
        return None

    return cited_ids


def quotes_found(*, words: int = 3) -> Grounding:
    """Return a check that each quotation of at least `words` words occurs in a document."""

    def quotes_found(subject: Subject) -> str | None:
        sources = [_plain(document.text) for document in subject.documents]
        missing_quotes = [
            quote
            for quote in _quotes(subject.text)
            if len(quote.split()) >= words and not _is_in(quote, sources)
        ]
        return (
            f"quotes what stands in no document: {'; '.join(missing_quotes)}"
            if missing_quotes
            else None
        )

    return quotes_found


def numbers_found(*, ignore: Collection[str] = ()) -> Grounding:
    """Return a check that each number in a text occurs in a document.

    Citations and list markers do not count. 1,234.50 and 1234.5 are the same number; signs and
    units are not compared.
    """
    ignored_numbers = {number for text in ignore for number in _numbers(text)}

    def numbers_found(subject: Subject) -> str | None:
        source_numbers = {
            number for document in subject.documents for number in _numbers(document.text)
        }
        text = _LIST_MARKER.sub(" ", re.sub(_CITATION, " ", subject.text))
        missing_numbers = dict.fromkeys(
            n for n in _numbers(text) if n not in source_numbers | ignored_numbers
        )
        return (
            f"has numbers that stand in no document: {', '.join(missing_numbers)}"
            if missing_numbers
            else None
        )

    return numbers_found


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        expression = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"cited_ids({pattern!r}): {error}") from error
    if expression.groups < 1:
        raise ConfigurationError(f"cited_ids({pattern!r}): put the id into a group")
    return expression


def _ids(citation: re.Pattern[str], text: str) -> Iterator[str]:
    for match in citation.finditer(text):
        yield from (id for part in re.split("[,;]", match.group(1) or "") if (id := part.strip()))


def _quotes(text: str) -> Iterator[str]:
    for match in _QUOTE.finditer(text):
        yield next(group for group in match.groups() if group is not None)


def _is_in(quote: str, sources: list[str]) -> bool:
    parts = [part.strip() for part in _ELLIPSIS.split(_plain(quote)) if part.strip()]
    return any(all(part in source for part in parts) for source in sources)


def _plain(text: str) -> str:
    straight = text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'})
    return " ".join(unicodedata.normalize("NFC", straight).casefold().split())


def _numbers(text: str) -> Iterator[str]:
    for match in _NUMBER.finditer(text):
        yield _canonical(match.group())


def _canonical(number: str) -> str:
    if _THOUSANDS.fullmatch(number):
        number = number.replace(",", "")
    elif _THOUSANDS_BY_POINTS.fullmatch(number):
        number = number.replace(".", "").replace(",", ".")
    elif number.count(",") == 1 and "." not in number:
        number = number.replace(",", ".")
    whole, point, rest = number.partition(".")
    if point and "." not in rest:
        rest = rest.rstrip("0")
    return f"{whole.lstrip('0') or '0'}{'.' if rest else ''}{rest}"
