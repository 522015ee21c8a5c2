"""Drafts: the fields of an envelope that its sender fills in, and the checks of outside drafts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from agentgraph.errors import ConfigurationError
from agentgraph.outcomes import Handoff
from agentgraph.remote.principal import PRINCIPAL_KEY, current_principal
from agentgraph.routing.frozen_json import FrozenDict
from agentgraph.routing.values import short
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.blobs import are_whole, is_reference, take_out
from agentgraph.sessions.envelopes.envelope import Priority
from agentgraph.sessions.envelopes.payload import (
    MAX_BYTES,
    canonical,
    clip_text,
    decode_json,
    encode_json,
)

ContentBlock: TypeAlias = Mapping[str, Any]
"""A content block of LangChain's, such as `{"type": "image", "url": "https://…"}`."""
Content: TypeAlias = str | Sequence[ContentBlock]
"""What a text says: a string, or content blocks with texts, images, files and audio."""

_CUSTOM_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
_OWN_PREFIX = "ag."
_STAMPED_KEYS = ("decision", "parallel", "asked")


@dataclass(frozen=True, slots=True)
class Draft:
    """The fields of an envelope that its sender fills in; the hub adds the others.

        await session.send("user", text_envelope("for you two", audience=["ann", "bob"]))

    `audience` None means all participants, a list only its members. `event_data` and `metadata`
    become canonical JSON; `ConfigurationError` if they cannot.
    """

    event_type: str
    event_data: Mapping[str, Any]
    audience: tuple[str, ...] | None = None
    causation_id: str | None = None
    priority: Priority = Priority.NORMAL
    idempotency_key: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)
    blobs: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The content blocks that are too large for an envelope, by digest, of `text_envelope`."""

    def __post_init__(self) -> None:
        faults = [*_field_faults(self)]
        if faults:
            raise ConfigurationError(faults, code="draft")
        if self.audience is not None:
            object.__setattr__(self, "audience", tuple(self.audience))
        object.__setattr__(self, "priority", Priority(self.priority))
        object.__setattr__(self, "event_data", canonical(self.event_data, "event_data"))
        if type(self.metadata) is not FrozenDict or self.metadata:
            object.__setattr__(self, "metadata", canonical(self.metadata, "metadata"))


def text_envelope(
    text: Content,
    *,
    audience: Sequence[str] | None = None,
    causation_id: str | None = None,
    priority: Priority = Priority.NORMAL,
    idempotency_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Draft:
    """Return a draft of a text, which every participant may send.

        text_envelope([{"type": "text", "text": "What is it?"}, {"type": "image", "url": link}])

    The text of content blocks is that of their text blocks, joined. A text of more than 256,000
    bytes is refused: a session of one takes it, by `send` and `ask`.
    """
    data, blobs = _text_data(text, is_single=False)
    return Draft(
        ev.EV_TEXT,
        data,
        cast("tuple[str, ...] | None", audience),
        causation_id,
        priority,
        idempotency_key,
        metadata or FrozenDict(),
        blobs,
    )


def packet_envelope(
    body: str,
    *,
    handoff: Handoff | None = None,
    context_set: Mapping[str, Any] | None = None,
    context_delete: Sequence[str] = (),
    tool: str | None = None,
    audience: Sequence[str] | None = None,
    causation_id: str | None = None,
    priority: Priority = Priority.NORMAL,
    idempotency_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Draft:
    """Return a draft of a whole turn, for a participant that is no agent: a bridge, a test.

        packet_envelope("over to you", handoff=Handoff("bob"), context_set={"done": True})

    Only a participant that has the floor may send it.
    """
    routing: dict[str, Any] = {"kind": "handoff" if handoff or tool else "text", "tool": tool}
    if handoff is not None:
        routing |= {
            "target": handoff.target,
            "reason": handoff.reason,
            "summary": handoff.summary,
            "next_phase": handoff.next_phase,
        }
    data = {
        "routing": routing,
        "context_updates": {"set": dict(context_set or {}), "delete": list(context_delete)},
        "body": body,
    }
    return Draft(
        ev.EV_PACKET,
        data,
        cast("tuple[str, ...] | None", audience),
        causation_id,
        priority,
        idempotency_key,
        metadata or FrozenDict(),
    )


def make_draft(content: object, *, is_single: bool, **fields: Any) -> Draft:
    """Return a text as a draft, or a draft with some fields replaced; None keeps a field.

    For a session of one a text may be of any size that a blob has.
    """
    overrides = {key: value for key, value in fields.items() if value is not None}
    if isinstance(content, Draft):
        return replace(content, **overrides)
    if not isinstance(content, str | list | tuple):
        raise ConfigurationError(
            f"{type(content).__name__} cannot be sent: give a text, a list of content blocks, or a "
            "Draft such as text_envelope(…) makes",
            code="draft",
        )
    data, blobs = _text_data(content, is_single=is_single)
    return Draft(ev.EV_TEXT, data, blobs=blobs, **overrides)


def signed(draft: Draft) -> Draft:
    """Return a draft with who asks, if a server knows that: it travels with the envelope."""
    principal = current_principal()
    if principal is None:
        return draft
    return replace(draft, metadata={**draft.metadata, PRINCIPAL_KEY: principal.to_dict()})


def _text_data(content: Content, *, is_single: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the data of an `EV_TEXT`, and what of it is stored beside it.

    A text that an envelope cannot hold is clipped there in a session of one, where nobody reads it
    but people: the agent reads the content, which has all of it. Raises `ConfigurationError` with
    every fault of the content.
    """
    if isinstance(content, str):
        if not is_single or not _is_large({"text": content}):
            return {"text": content}, {}
        parts, blobs = take_out([content], "text")
        return {"text": clip_text(content), "content": parts[0]}, blobs
    if not isinstance(content, list | tuple):
        raise ConfigurationError(
            f"a text is a string or a list of content blocks, not {type(content).__name__}",
            code="draft",
        )
    faults = _block_faults(content)
    if faults:
        raise ConfigurationError(faults, code="draft")
    try:
        parts, blobs = take_out(content, "content")
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"content: {error}", code="payload") from error
    data = {"text": _text_of(content), "content": parts}
    if is_single and _is_large(data):
        data["text"] = clip_text(_text_of(content))
    return data, blobs


def _is_large(data: Mapping[str, Any]) -> bool:
    return len(encode_json(data)) > MAX_BYTES


def _text_of(blocks: Sequence[ContentBlock]) -> str:
    """Return the text of content blocks as LangChain's messages do."""
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _content_faults(draft: Draft, *, is_single: bool) -> list[str]:
    """Return what is wrong with the text of an outside draft, or with its content blocks."""
    data = draft.event_data
    if not isinstance(data.get("text"), str):
        return ["event_data: a text has a 'text'"]
    if "content" not in data:
        return []
    blocks = data["content"]
    if is_single and is_reference(blocks) and draft.blobs:
        return _large_text_faults(draft)
    if not isinstance(blocks, list):
        return ["event_data: 'content' is a list of content blocks"]
    unknown_blocks = [b for b in blocks if is_reference(b) and b.get("blob") not in draft.blobs]
    if unknown_blocks:
        return ["event_data: text_envelope([…]) makes blocks of type 'blob', and nobody else"]
    faults = _block_faults(blocks)
    if not faults and not draft.blobs and data["text"] != _text_of(blocks):
        faults.append(
            "event_data: 'text' is not that of the 'content': text_envelope([…]) fills in both"
        )
    return faults


def _large_text_faults(draft: Draft) -> list[str]:
    """Return what is wrong with a text that stands in a blob: it may be another than is shown."""
    try:
        text = decode_json(draft.blobs[draft.event_data["content"]["blob"]])
    except (KeyError, ValueError):
        text = None
    if isinstance(text, str) and _text_data(text, is_single=True)[0] == draft.event_data:
        return []
    return ["event_data: give a large text itself, and not what it is stored as"]


def _block_faults(blocks: Sequence[object]) -> list[str]:
    faults = [] if blocks else ["content: give at least one content block"]
    for number, block in enumerate(blocks):
        place = f"content[{number}]={short(block)}"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(block, Mapping) or not isinstance(kind, str):
            faults.append(f"{place}: give an object with a 'type', such as 'text' or 'image'")
        elif kind == "text" and not isinstance(block.get("text"), str):
            faults.append(f"{place}: a block of type 'text' has a 'text'")
    return faults


def draft_faults(draft: Draft, *, is_single: bool) -> list[str]:
    """Return what is wrong with an outside draft: its type, or data that only sessions write.

    Reserved event types are refused, so that no sender can forge lifecycle events.
    """
    faults = [] if (fault := type_fault(draft.event_type)) is None else [fault]
    data = draft.event_data
    if draft.blobs and not are_whole(draft.blobs):
        faults.append("blobs: text_envelope([…]) fills them in, each under its digest")
    faults += [
        f"event_data: {key!r} is stamped by the session" for key in _STAMPED_KEYS if key in data
    ]
    if PRINCIPAL_KEY in draft.metadata:
        faults.append(f"metadata: {PRINCIPAL_KEY!r} is filled in by the server")
    if draft.event_type == ev.EV_TEXT:
        faults += _content_faults(draft, is_single=is_single)
    if draft.event_type == ev.EV_PACKET:
        faults += _packet_faults(data)
    if draft.event_type == ev.EV_CONTEXT_SET:
        faults += _update_faults(data, "event_data")
    return faults


def _packet_faults(data: Mapping[str, Any]) -> list[str]:
    faults = []
    if not isinstance(data.get("body"), str):
        faults.append("event_data: a packet has a 'body'")
    if not isinstance(data.get("routing"), Mapping):
        faults.append("event_data: a packet has its 'routing'")
    extra_keys = sorted(set(data) - {"body", "routing", "context_updates"})
    faults += [
        f"event_data: {key!r} is filled in by rounds"
        for key in extra_keys
        if key not in _STAMPED_KEYS
    ]
    return faults + _update_faults(data.get("context_updates", {}), "context_updates")


def _update_faults(updates: Any, where: str) -> list[str]:
    if not isinstance(updates, Mapping):
        return [f"{where}: give an object with 'set' and 'delete'"]
    extra_keys = sorted(set(updates) - {"set", "delete"})
    faults = [f"{where}: there is no {key!r}: use 'set' and 'delete'" for key in extra_keys]
    if not isinstance(updates.get("set", {}), Mapping):
        faults.append(f"{where}: 'set' is an object of values by key")
    deletions = updates.get("delete", [])
    if not isinstance(deletions, list) or not all(isinstance(key, str) for key in deletions):
        faults.append(f"{where}: 'delete' is a list of keys")
    return faults


def type_fault(event_type: object) -> str | None:
    """Return what is wrong with the event type of an outside draft, None if nothing is."""
    if event_type in (*ev.SUBSTANTIVE, ev.EV_CONTEXT_SET):
        return None
    if not isinstance(event_type, str) or not _CUSTOM_TYPE.fullmatch(event_type):
        return f"the event type {event_type!r} is not dotted, as in 'myapp.review_requested'"
    if is_reserved(event_type):
        return f"{event_type!r} is said by sessions alone: use a prefix of your own"
    return None


def is_reserved(event_type: object) -> bool:
    """Tell whether only sessions say envelopes of this type; the case of letters does not count."""
    if not isinstance(event_type, str) or event_type in (*ev.SUBSTANTIVE, ev.EV_CONTEXT_SET):
        return False
    return event_type.lower().startswith(_OWN_PREFIX)


def _field_faults(draft: Draft) -> Iterator[str]:
    if isinstance(draft.audience, str) or not isinstance(draft.audience, Iterable | None):
        yield f"audience={short(draft.audience)}: give a list of names, or None for everybody"
    if draft.priority not in [*Priority]:
        yield f"priority={short(draft.priority)}: use Priority.LOW, NORMAL, HIGH or URGENT"
    for name in ("causation_id", "idempotency_key"):
        value = getattr(draft, name)
        if not isinstance(value, str | None):
            yield f"{name}={short(value)}: give a string"
