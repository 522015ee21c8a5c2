"""HTML for notebooks: escaped, styled inline, and readable on light and dark pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

_LONGEST = 400
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CODE = "background:#8882;border-radius:3px;padding:0 4px;white-space:pre-wrap;color:inherit"
_KIND = f"{_CODE};display:inline-block;min-width:9em;opacity:.75"
_TABLE = "border-collapse:collapse;line-height:1.5;text-align:left"
_CELL = "padding:3px 14px 3px 0;vertical-align:top;text-align:left;border-bottom:1px solid #8884"
_PANEL = "border-left:3px solid {colour};padding:2px 0 2px 12px;margin:4px 0;line-height:1.6"


def escaped(text: object) -> str:
    """Return text that is safe in HTML and in XML, in attributes too.

    Characters that XML forbids are replaced: one of them would make an SVG unreadable.
    """
    return escape(_NOT_IN_XML.sub("\ufffd", str(text)))


def code(value: object) -> str:
    """Show a value as code, in one line of limited length."""
    text = value if isinstance(value, str) else _json(value)
    return f'<code style="{_CODE}">{escaped(shortened(text))}</code>'


def prose(text: str) -> str:
    """Show text with its line breaks."""
    return f'<div style="white-space:pre-wrap">{escaped(text)}</div>'


def row(label: str, html: str) -> str:
    """Show HTML behind a faint label."""
    return f'<div><span style="opacity:.6">{escaped(label)}</span> {html}</div>'


def panel(title: str, *html: str) -> str:
    """Show HTML under a title, with a line at the left."""
    return _panel("#6b87b0", title, *html)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Show rows of HTML under a head of plain texts; the first cell of a row is its name."""
    titles = "".join(_cell("th", escaped(title)) for title in head)
    lines = (
        f"<tr>{_cell('th', first)}{''.join(_cell('td', cell) for cell in cells)}</tr>"
        for first, *cells in rows
    )
    return f'<table style="{_TABLE}"><tr>{titles}</tr>{"".join(lines)}</table>'


def fault(title: str, message: str) -> str:
    """Show an error, with a red line at the left."""
    return _panel("#c0504d", title, prose(message))


def event_line(kind: str, values: Mapping[str, object]) -> str:
    """Show an event in one line: its kind, its agent and its content."""
    return (
        f'<div style="line-height:1.6"><code style="{_KIND}">{escaped(kind)}</code> '
        f'<span style="opacity:.6">{escaped(values.get("agent") or "")}</span> '
        f"{_content(values)}</div>"
    )


def signature(name: str, arguments: Mapping[str, object]) -> str:
    """Return a call as code: its name, and its arguments as JSON."""
    return f"{name}({', '.join(f'{key}={_json(value)}' for key, value in arguments.items())})"


def shortened(text: str) -> str:
    """Return text cut to 400 characters."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _cell(tag: str, html: str) -> str:
    return f'<{tag} style="{_CELL}">{html}</{tag}>'


def _panel(colour: str, title: str, *html: str) -> str:
    style = _PANEL.format(colour=colour)
    return f'<div style="{style}"><div><b>{escaped(title)}</b></div>{"".join(html)}</div>'


def _content(values: Mapping[str, object]) -> str:
    match values:
        case {"tool": tool, "args": Mapping() as args}:
            return code(signature(str(tool), args))
        case {"tool": tool, "content": content, "status": status}:
            failed = " failed" if status == "error" else ""
            return f"{code(f'{tool}{failed}')} {_words(content)}"
        case {"kind": kind, "source": source, "target": target, "reason": reason}:
            suffix = f": {reason}" if reason else ""
            return f"{_words(kind)} {code(source)} → {code(target)}{_words(suffix)}"
        case {"id": name, "payload": payload}:
            return f"{code(payload)} {_words(f'asked as {name}')}"
        case {"code": name, "message": message}:
            return f"{code(name)} {_words(message)}"
        case {"text": text, "close_reason": str(reason)}:
            return f"{_words(text)} {code(reason)}"
        case {"text": text}:
            return _words(text)
        case {"decision": {"action": action, "guard": guard, "cause": cause}}:
            return f"{code(action)} {_words(f'{guard}: {cause}')}"
        case {"decision": decision}:
            return code(decision)
    return ""


def _words(text: object) -> str:
    return escaped(shortened(str(text)))


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)
