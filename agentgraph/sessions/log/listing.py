"""The list of a store's sessions as one statement, for both kinds of SQL databases.

Metadata are looked up by labels: each of their entries has a digest, by which an index finds it, of
whatever length and type the value is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from agentgraph.sessions.log.protocol import SessionQuery
from agentgraph.sessions.log.rows import to_ascii
from agentgraph.sessions.state.record import INNER_PREFIX, SessionRecord

_COLUMNS = ["session_id", "team", "status", "creator", "created_at", "head", "parent", "metadata"]
"""What `rows.read_summary` reads."""
_NOT_INNER = f"""(s.parent IS NULL OR NOT (
    replace(s.session_id, '{INNER_PREFIX}', '') <> s.session_id
    OR substr(s.session_id, 1, length(s.parent) + 1) = s.parent || '/'
    OR substr(s.session_id, 1, length(s.parent) + 9) = 'default/' || s.parent || '/'
))"""
"""A fork has a parent too, but no such id. The last two are the ids of earlier versions."""


def labels_of(record: SessionRecord) -> list[str]:
    """Return the labels of a session: of its metadata, and of those who did not open it."""
    people = {*record.humans, *record.invited} - {record.creator}
    return [*_labels_of_metadata(record.metadata), *sorted(map(_label_of_person, people))]


def _labels_of_metadata(metadata: Mapping[str, Any]) -> list[str]:
    """Return the digest of each entry; entries that are equal as JSON have the same one."""
    return [_digest([key, _plain(value)]) for key, value in metadata.items()]


def _label_of_person(name: str) -> str:
    return _digest(["", "takes part", name])  # an entry of metadata has two parts


def _digest(entry: Sequence[Any]) -> str:
    text = json.dumps(entry, sort_keys=True)
    return blake2b(text.encode("ascii"), digest_size=20).hexdigest()


def listing(
    query: SessionQuery, after: int | None, mark: Callable[[str], str]
) -> tuple[str, dict[str, Any]]:
    """Return the statement of a query and its values, by name; `mark` writes a parameter.

    `after` is the ordinal of the session that `query.after` names.
    """
    values: dict[str, Any] = {}

    def parameter(name: str, value: object) -> str:
        values[name] = value
        return mark(name)

    columns = {
        "status": query.status,
        "team": query.team,
        "creator": query.creator,
        "tenant": query.tenant,
    }
    conditions = [
        f"s.{column} = {parameter(column, to_ascii(value))}"
        for column, value in columns.items()
        if value is not None
    ]
    if not query.with_inner:
        conditions.append(_NOT_INNER)
    if query.person is not None:
        person, label = to_ascii(query.person), _label_of_person(query.person)
        conditions.append(
            f"(s.creator = {parameter('person', person)} OR EXISTS (SELECT 1 FROM "
            f"agentgraph_labels p WHERE p.digest = {parameter('person_label', label)} "
            "AND p.tenant = s.tenant AND p.ordinal = s.ordinal))"
        )
    tables, order = ["agentgraph_sessions s"], "s.ordinal"
    for number, label in enumerate(_labels_of_metadata(query.metadata)):
        name = f"l{number}"
        tables.append(f"agentgraph_labels {name}")
        conditions.append(f"{name}.digest = {parameter(name, label)} AND {name}.tenant = s.tenant")
        conditions.append(f"{name}.ordinal = s.ordinal")
    if len(tables) > 1 and query.creator is None:
        # SQLite joins in this order: the sessions of a label are found without reading the others.
        tables[:2], order = [tables[1], tables[0]], "l0.ordinal"
        if query.tenant is not None:
            conditions.append(f"l0.tenant = {mark('tenant')}")
    if after is not None:
        beyond = "<" if query.newest_first else ">"
        conditions.append(f"{order} {beyond} {parameter('after', after)}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    limit = "" if query.limit is None else f" LIMIT {parameter('limit', query.limit)}"
    names = ", ".join(f"s.{column}" for column in _COLUMNS)
    direction = " DESC" if query.newest_first else ""
    source = " CROSS JOIN ".join(tables)
    return f"SELECT {names} FROM {source}{where} ORDER BY {order}{direction}{limit}", values


def _plain(value: Any) -> Any:
    """Return a JSON value in which equal numbers are written alike: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
