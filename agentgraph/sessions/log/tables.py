"""The tables of sessions, as migrations. A released migration never changes; new ones are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from agentgraph.errors import StorageError

Migrations: TypeAlias = Sequence[Sequence[str]]
"""The statements of each version, beginning with version 1."""


def due_migrations(
    store: str, version: int, migrations: Migrations
) -> list[tuple[int, Sequence[str]]]:
    """Return the migrations that a store of this version lacks, each with its version.

    `StorageError` if the store's version is higher than that of the last migration.
    """
    if version > len(migrations):
        raise StorageError(
            f"{store} has the tables of a newer agentgraph (version {version}; this one knows "
            f"{len(migrations)}): upgrade agentgraph, or use another store"
        )
    return list(enumerate(migrations, 1))[version:]


VERSIONS = "CREATE TABLE IF NOT EXISTS agentgraph_migrations (version INTEGER PRIMARY KEY)"

# A session that has ended is neither runnable nor due and has no inbox, so these partial indexes
# stay small, whatever the number of sessions.
_INDEXES = (
    "CREATE UNIQUE INDEX agentgraph_envelope_ids ON agentgraph_envelopes (session_id, envelope_id)",
    "CREATE INDEX agentgraph_envelopes_said "
    "ON agentgraph_envelopes (session_id, sequence) WHERE said IS NOT NULL",
    "CREATE INDEX agentgraph_sessions_due ON agentgraph_sessions (due_at) WHERE due_at IS NOT NULL",
    "CREATE INDEX agentgraph_sessions_owned ON agentgraph_sessions (owner) WHERE owner IS NOT NULL",
    "CREATE INDEX agentgraph_sessions_left ON agentgraph_sessions (ordinal) "
    "WHERE owner IS NOT NULL AND status IN ('closed', 'expired')",
)

_SQLITE_1 = (
    """CREATE TABLE agentgraph_sessions (
        ordinal INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL UNIQUE,
        team TEXT NOT NULL,
        creator TEXT NOT NULL,
        parent TEXT,
        created_at REAL NOT NULL,
        status TEXT NOT NULL,
        runnable INTEGER NOT NULL,
        due_at REAL,
        head INTEGER NOT NULL,
        said INTEGER NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        owner TEXT,
        epoch INTEGER NOT NULL DEFAULT 0,
        snapshot TEXT,
        record TEXT NOT NULL
    )""",
    """CREATE TABLE agentgraph_envelopes (
        place INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        envelope_id TEXT NOT NULL,
        said INTEGER,
        data TEXT NOT NULL,
        UNIQUE (session_id, sequence)
    )""",
    """CREATE TABLE agentgraph_keys (
        session_id TEXT NOT NULL,
        digest TEXT NOT NULL,
        envelope_id TEXT NOT NULL,
        PRIMARY KEY (session_id, digest)
    ) WITHOUT ROWID""",
    """CREATE TABLE agentgraph_inbox (
        arrival INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL,
        envelope_id TEXT NOT NULL,
        data TEXT NOT NULL,
        UNIQUE (session_id, envelope_id)
    )""",
    "CREATE TABLE agentgraph_hubs (owner TEXT PRIMARY KEY, until REAL NOT NULL)",
    # Counts the changes that add no row, so that other processes notice these changes too.
    "CREATE TABLE agentgraph_changes (count INTEGER NOT NULL)",
    "INSERT INTO agentgraph_changes VALUES (0)",
    *_INDEXES,
    "CREATE INDEX agentgraph_sessions_runnable ON agentgraph_sessions (ordinal) WHERE runnable = 1",
)

_POSTGRES_1 = (
    # Half of each page stays free, so that an append can rewrite its session's row in place (a HOT
    # update), as long as the indexed columns stay the same.
    """CREATE TABLE agentgraph_sessions (
        ordinal bigint GENERATED ALWAYS AS IDENTITY,
        session_id text PRIMARY KEY,
        team text NOT NULL,
        creator text NOT NULL,
        parent text,
        created_at double precision NOT NULL,
        status text NOT NULL,
        runnable boolean NOT NULL,
        due_at double precision,
        head bigint NOT NULL,
        said bigint NOT NULL,
        attempts integer NOT NULL DEFAULT 0,
        owner text,
        epoch bigint NOT NULL DEFAULT 0,
        snapshot text,
        record text NOT NULL
    ) WITH (fillfactor = 50)""",
    """CREATE TABLE agentgraph_envelopes (
        session_id text NOT NULL,
        sequence bigint NOT NULL,
        envelope_id text NOT NULL,
        said bigint,
        data text NOT NULL,
        PRIMARY KEY (session_id, sequence)
    )""",
    """CREATE TABLE agentgraph_keys (
        session_id text NOT NULL,
        digest text NOT NULL,
        envelope_id text NOT NULL,
        PRIMARY KEY (session_id, digest)
    )""",
    """CREATE TABLE agentgraph_inbox (
        arrival bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        session_id text NOT NULL,
        envelope_id text NOT NULL,
        data text NOT NULL,
        UNIQUE (session_id, envelope_id)
    )""",
    "CREATE TABLE agentgraph_hubs (owner text PRIMARY KEY, until double precision NOT NULL)",
    *_INDEXES,
    "CREATE INDEX agentgraph_sessions_runnable ON agentgraph_sessions (ordinal) WHERE runnable",
)

# Sessions belong to tenants. An id that looks like `tenant/id` gets its tenant before it, as
# `state.record.session_key` writes it, so that the keys of a tenant are free for its sessions.
_PREFIXED_COLUMNS = (
    ("agentgraph_sessions", "session_id"),
    ("agentgraph_sessions", "parent"),
    ("agentgraph_envelopes", "session_id"),
    ("agentgraph_keys", "session_id"),
    ("agentgraph_inbox", "session_id"),
)
_TENANTS = (
    "ALTER TABLE agentgraph_sessions ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default'",
    "ALTER TABLE agentgraph_sessions ADD COLUMN metadata TEXT",
    # Equal entries of metadata have equal digests.
    """CREATE TABLE agentgraph_labels (
        digest TEXT NOT NULL,
        tenant TEXT NOT NULL,
        ordinal BIGINT NOT NULL,
        PRIMARY KEY (digest, tenant, ordinal)
    )""",
    # The epoch that new sessions begin with: higher than that of any that was forgotten.
    "CREATE TABLE agentgraph_epochs (lowest BIGINT NOT NULL)",
    "INSERT INTO agentgraph_epochs VALUES (0)",
    "CREATE INDEX agentgraph_labels_of ON agentgraph_labels (ordinal)",
    "CREATE INDEX agentgraph_sessions_of_tenant ON agentgraph_sessions (tenant, ordinal)",
    "CREATE INDEX agentgraph_sessions_of_creator ON agentgraph_sessions (creator, ordinal)",
    "CREATE INDEX agentgraph_sessions_of_tenants_creator "
    "ON agentgraph_sessions (tenant, creator, ordinal)",
    "CREATE INDEX agentgraph_sessions_below ON agentgraph_sessions (parent) "
    "WHERE parent IS NOT NULL",
)
_SQLITE_2 = (
    *(
        f"UPDATE {table} SET {column} = 'default/' || {column} "
        f"WHERE instr({column}, '/') BETWEEN 2 AND 53 "
        f"AND substr({column}, 1, instr({column}, '/') - 1) NOT GLOB '*[^a-zA-Z0-9_-]*'"
        for table, column in _PREFIXED_COLUMNS
    ),
    *_TENANTS,
)
_POSTGRES_2 = (
    *(
        f"UPDATE {table} SET {column} = 'default/' || {column} "
        f"WHERE {column} ~ '^[a-zA-Z0-9_-]{{1,52}}/'"
        for table, column in _PREFIXED_COLUMNS
    ),
    *_TENANTS,
    "CREATE UNIQUE INDEX agentgraph_sessions_listed ON agentgraph_sessions (ordinal)",
)

# Texts that are too large for an envelope, by their digest, by which they are checked too.
_BLOBS = """CREATE TABLE agentgraph_blobs (
        session_id TEXT NOT NULL,
        digest TEXT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (session_id, digest)
    )"""

# States that stay, as the column `snapshot` of a session has the last one.
_MILESTONES = """CREATE TABLE agentgraph_milestones (
        session_id TEXT NOT NULL,
        sequence BIGINT NOT NULL,
        snapshot TEXT NOT NULL,
        PRIMARY KEY (session_id, sequence)
    )"""

# An envelope is found by its id alone too: an input's is that of the run that it begins.
_RUNS = (
    "CREATE UNIQUE INDEX agentgraph_envelope_places "
    "ON agentgraph_envelopes (envelope_id, session_id)",
    "DROP INDEX agentgraph_envelope_ids",
    "CREATE INDEX agentgraph_inbox_ids ON agentgraph_inbox (envelope_id)",
)

# Live events of turns under way, of sessions that another hub than their owner's watches.
_LIVE = """agentgraph_live (
        session_id TEXT NOT NULL,
        sequence BIGINT NOT NULL,
        attempt BIGINT NOT NULL,
        number BIGINT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (session_id, sequence, attempt, number)
    )"""
_WATCHERS = """agentgraph_watchers (
        session_id TEXT NOT NULL,
        owner TEXT NOT NULL,
        PRIMARY KEY (session_id, owner)
    )"""
_SQLITE_6 = (f"CREATE TABLE {_LIVE} WITHOUT ROWID", f"CREATE TABLE {_WATCHERS} WITHOUT ROWID")
# Unlogged: nobody waits for the disk, and after a crash of the server nobody watches.
_POSTGRES_6 = (f"CREATE UNLOGGED TABLE {_LIVE}", f"CREATE UNLOGGED TABLE {_WATCHERS}")

# Addresses that are to be told how a run has ended.
_WEBHOOKS = (
    """CREATE TABLE agentgraph_webhooks (
        session_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        url TEXT NOT NULL,
        reader TEXT,
        tries BIGINT NOT NULL,
        due_at DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (session_id, run_id)
    )""",
    "CREATE INDEX agentgraph_webhooks_due ON agentgraph_webhooks (due_at)",
)

SQLITE: Migrations = (
    _SQLITE_1,
    _SQLITE_2,
    (f"{_BLOBS} WITHOUT ROWID",),
    (_MILESTONES,),
    _RUNS,
    _SQLITE_6,
    _WEBHOOKS,
)
POSTGRES: Migrations = (
    _POSTGRES_1,
    _POSTGRES_2,
    (_BLOBS,),
    (_MILESTONES,),
    _RUNS,
    _POSTGRES_6,
    _WEBHOOKS,
)
