"""The list of a store's sessions as one statement, for both kinds of SQL databases.

Metadata are looked up by labels: each of their entries has a digest, by which an index finds it, of
whatever length and type the value is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    parameters = _Parameters(mark)
    labels = _labels_of_metadata(query.metadata)
    order = "DESC" if query.newest_first else "ASC"
    limit = "" if query.limit is None else f" LIMIT {parameters.add('limit', query.limit)}"
    if query.person is None:
        statement = _select(query, labels, after, parameters)
        return f"{statement} ORDER BY ordinal {order}{limit}", parameters.values
    # Each half is read in order by its own index, and no further than the limit.
    joined = _select(query, [*labels, _label_of_person(query.person)], after, parameters)
    halves = [joined]
    if query.creator in (None, query.person):
        opened = replace(query, creator=query.person)
        halves.append(_select(opened, labels, after, parameters))
    parts = [
        f"SELECT * FROM ({half} ORDER BY ordinal {order}{limit}) AS half{number}"
        for number, half in enumerate(halves)
    ]
    return f"{' UNION ALL '.join(parts)} ORDER BY ordinal {order}{limit}", parameters.values


class _Parameters:
    """The values of a statement, each with a name of its own."""

    def __init__(self, mark: Callable[[str], str]) -> None:
        self.values: dict[str, Any] = {}
        self._mark = mark

    def add(self, name: str, value: object) -> str:
        """Return a new parameter as the statement has it."""
        name = f"{name}{len(self.values)}"
        self.values[name] = value
        return self._mark(name)


def _select(
    query: SessionQuery, labels: Sequence[str], after: int | None, parameters: _Parameters
) -> str:
    """Return a statement for the sessions that have all labels, without its order and limit."""
    columns = {
        "status": query.status,
        "team": query.team,
        "creator": query.creator,
        "tenant": query.tenant,
    }
    conditions = [
        f"s.{column} = {parameters.add(column, to_ascii(value))}"
        for column, value in columns.items()
        if value is not None
    ]
    if not query.with_inner:
        conditions.append(_NOT_INNER)
    tables, place = ["agentgraph_sessions s"], "s.ordinal"
    for number, label in enumerate(labels):
        name = f"l{number}"
        tables.append(f"agentgraph_labels {name}")
        digest = parameters.add("label", label)
        conditions.append(f"{name}.digest = {digest} AND {name}.tenant = s.tenant")
        conditions.append(f"{name}.ordinal = s.ordinal")
    if labels and query.creator is None:
        # SQLite joins in this order: the sessions of a label are found without reading the others.
        tables[:2], place = [tables[1], tables[0]], "l0.ordinal"
        if query.tenant is not None:
            conditions.append(f"l0.tenant = {parameters.add('tenant', to_ascii(query.tenant))}")
    if after is not None:
        beyond = "<" if query.newest_first else ">"
        conditions.append(f"{place} {beyond} {parameters.add('after', after)}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    names = ", ".join(f"s.{column}" for column in _COLUMNS)
    return f"SELECT {names}, {place} AS ordinal FROM {' CROSS JOIN '.join(tables)}{where}"


def _plain(value: Any) -> Any:
    """Return a JSON value in which equal numbers are written alike: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
