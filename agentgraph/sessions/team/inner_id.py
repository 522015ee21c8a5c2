"""The ids of inner sessions: a hub finds them again, and nobody else can know or choose them.

An id follows from the secret in the outer session's record and from the round, so that the round
finds its inner session again after a kill. Sessions of earlier versions have no secret: there the
id of the log's first envelope takes its place, and inner sessions that were under way keep the ids
that they had, such as "o/2/inner".
"""

from __future__ import annotations

from hashlib import blake2b

from agentgraph.sessions.envelopes.payload import encode_json
from agentgraph.sessions.log import Log
from agentgraph.sessions.state.record import INNER_PREFIX, Parent, SessionRecord, session_key

_KEY_SIZE = 64


def is_reserved(session_id: str) -> bool:
    """Tell whether an id is one that only inner sessions have."""
    return session_id.startswith(INNER_PREFIX)


def is_inner_of(record: SessionRecord, parent: Parent, team: str) -> bool:
    """Tell whether a stored session is a team's inner session for the round that `parent` names."""
    stored_parent = record.parent
    if stored_parent is None or record.team != team:
        return False
    round = (parent.session_id, parent.round, parent.speaker)
    # The records of earlier versions have no path; it is in their ids.
    is_same_path = stored_parent.path in ("", parent.path)
    stored_round = (stored_parent.session_id, stored_parent.round, stored_parent.speaker)
    return is_same_path and stored_round == round


def path_of(record: SessionRecord) -> str:
    """Return the path of an inner session: which part of its round it serves."""
    parent = record.parent
    if parent is None:
        return ""
    return parent.path or record.session_id.removeprefix(f"{parent.session_id}/{parent.round}/")


async def inner_id(log: Log, outer: SessionRecord, parent: Parent, attempt: int, team: str) -> str:
    """Return the id of a team's inner session for an attempt at a round; attempts begin with 1."""
    if outer.secret:
        return _derived_id(outer.secret, parent, attempt)
    earlier_id = _earlier_id(parent, attempt)
    stored_session = await log.load(session_key(outer.tenant, earlier_id))
    if stored_session is not None and is_inner_of(stored_session.record, parent, team):
        return earlier_id
    (first,) = await log.read(outer.key, 0, 1)
    return _derived_id(first.envelope_id, parent, attempt)


def known_ids(outer: SessionRecord, round: int, team: str, attempts: int) -> list[str]:
    """Return the ids that a team's inner sessions for a round can have, by the outer record."""
    parent = Parent(outer.session_id, round, team, path=team)
    numbers = range(1, attempts + 1)
    if outer.secret:
        return [_derived_id(outer.secret, parent, attempt) for attempt in numbers]
    return [_earlier_id(parent, attempt) for attempt in numbers]


def _derived_id(secret: str, parent: Parent, attempt: int) -> str:
    text = encode_json([parent.session_id, parent.round, parent.speaker, parent.path, attempt])
    key = secret.encode("utf-8", "backslashreplace")[:_KEY_SIZE]
    return INNER_PREFIX + blake2b(text.encode(), key=key, digest_size=20).hexdigest()


def _earlier_id(parent: Parent, attempt: int) -> str:
    first = f"{parent.session_id}/{parent.round}/{parent.path}"
    return first if attempt == 1 else f"{first}/{attempt}"
