"""The SQL on sessions in Postgres: each operation is one statement, and so one round trip."""

from __future__ import annotations

CHANNEL = "agentgraph_sessions"
"""The channel of change notifications; `listener.payload_of` makes the payload."""

# Envelopes and keys are passed as arrays, one per column: any number of rows is then one statement,
# which is prepared once. `said` numbers the envelopes that views show, so that a reader of
# TAIL can tell that none is missing.
_ENVELOPES = """
    SELECT %(session_id)s::text, e.sequence, e.envelope_id, {said} + e.said, e.data FROM {origin}
    unnest(%(sequences)s::bigint[], %(ids)s::text[], %(numbers)s::bigint[], %(data)s::text[])
        AS e (sequence, envelope_id, said, data)
"""
_KEYS = """
    SELECT %(session_id)s::text, k.digest, k.envelope_id FROM {origin}
    unnest(%(digests)s::text[], %(key_ids)s::text[]) AS k (digest, envelope_id)
    ON CONFLICT DO NOTHING
"""
_BLOBS = """
    SELECT %(session_id)s::text, b.digest, b.data FROM {origin}
    unnest(%(blob_digests)s::text[], %(blobs)s::text[]) AS b (digest, data)
    ON CONFLICT DO NOTHING
"""

# Returns no row, and inserts none, if a session with this id exists. The lock waits for a session
# that is being forgotten: the new one may have its id.
CREATE = """
INSERT INTO agentgraph_sessions
    (session_id, tenant, team, creator, parent, created_at, status, runnable, due_at, head, said,
     snapshot, metadata, record, epoch)
VALUES
    (%(session_id)s, %(tenant)s, %(team)s, %(creator)s, %(parent)s, %(created_at)s, %(status)s,
     %(runnable)s, %(due_at)s, %(head)s, %(said)s, %(snapshot)s, %(metadata)s, %(record)s,
     (SELECT lowest FROM agentgraph_epochs FOR SHARE))
ON CONFLICT DO NOTHING RETURNING ordinal
"""
LABEL = """
INSERT INTO agentgraph_labels (digest, tenant, ordinal)
SELECT digest, %(tenant)s, %(ordinal)s FROM unnest(%(labels)s::text[]) AS l (digest)
"""
# Inserts the first envelopes of a new session. The same transaction inserts the session's row.
FILL = f"""
INSERT INTO agentgraph_envelopes (session_id, sequence, envelope_id, said, data)
{_ENVELOPES.format(said="%(base)s::bigint", origin="")}
"""
FILL_KEYS = f"""
INSERT INTO agentgraph_keys (session_id, digest, envelope_id)
{_KEYS.format(origin="")}
"""
# Returns no row, and inserts nothing, for an unknown session. Locks the session's row, so that it
# cannot be forgotten meanwhile.
STORE_BLOBS = f"""
WITH target AS MATERIALIZED (
    SELECT session_id FROM agentgraph_sessions WHERE session_id = %(session_id)s FOR SHARE
), stored AS (
    INSERT INTO agentgraph_blobs (session_id, digest, data)
    {_BLOBS.format(origin="target,")}
)
SELECT 1 FROM target
"""
BLOBS = """
SELECT digest, data FROM agentgraph_blobs
WHERE session_id = %(session_id)s AND digest = ANY(%(digests)s::text[])
"""
SHARE_BLOBS = """
INSERT INTO agentgraph_blobs (session_id, digest, data)
SELECT %(session_id)s::text, digest, data FROM agentgraph_blobs
WHERE session_id = %(source)s AND digest = ANY(%(digests)s::text[])
"""
NOTIFY = f"SELECT pg_notify('{CHANNEL}', %(payload)s)"

# Nobody else has written one of this sequence, unless the end of the log was removed by hand.
_MILESTONE = """
    INSERT INTO agentgraph_milestones (session_id, sequence, snapshot)
    SELECT %(session_id)s, %(head)s::bigint + %(count)s::bigint, %(snapshot)s::text {origin}
    ON CONFLICT (session_id, sequence) DO UPDATE SET snapshot = excluded.snapshot
"""
ADD_MILESTONE = _MILESTONE.format(origin="")
MILESTONE = """
SELECT sequence, snapshot FROM agentgraph_milestones
WHERE session_id = %(session_id)s AND sequence <= %(at)s ORDER BY sequence DESC LIMIT 1
"""

# Every other part depends on the row that `moved` updates: if no row matches, nothing happens.
_MOVE_HEAD = """
    UPDATE agentgraph_sessions SET
        status = %(status)s, runnable = %(runnable)s, due_at = %(due_at)s, snapshot = %(snapshot)s,
        head = head + %(count)s, said = said + %(said)s,
        attempts = coalesce(%(attempts)s::integer, attempts)
    WHERE session_id = %(session_id)s AND head = %(head)s AND status NOT IN ('closed', 'expired')
        AND (%(epoch)s::bigint IS NULL OR epoch = %(epoch)s)
    RETURNING said - %(said)s AS said
"""
_APPEND = f"""
WITH moved AS ({_MOVE_HEAD}), added AS (
    INSERT INTO agentgraph_envelopes (session_id, sequence, envelope_id, said, data)
    {_ENVELOPES.format(said="moved.said", origin="moved,")}
), keyed AS (
    INSERT INTO agentgraph_keys (session_id, digest, envelope_id)
    {_KEYS.format(origin="moved,")}
), stored AS (
    INSERT INTO agentgraph_blobs (session_id, digest, data)
    {_BLOBS.format(origin="moved,")}
), gone AS (
    DELETE FROM agentgraph_inbox USING moved
    WHERE session_id = %(session_id)s AND envelope_id = ANY(%(admitted_ids)s::text[])
)"""
_NOTIFY_MOVED = f"SELECT pg_notify('{CHANNEL}', %(payload)s) FROM moved"
APPEND = f"{_APPEND}\n{_NOTIFY_MOVED}"
APPEND_WITH_MILESTONE = f"""{_APPEND}, milestone AS ({_MILESTONE.format(origin="FROM moved")})
{_NOTIFY_MOVED}
"""
# An append of one envelope, and nothing else: most are, and it takes half the time.
APPEND_ONE = f"""
WITH moved AS ({_MOVE_HEAD})
INSERT INTO agentgraph_envelopes (session_id, sequence, envelope_id, said, data)
SELECT %(session_id)s::text, %(sequence)s::bigint, %(envelope_id)s::text,
    moved.said + %(number)s::bigint, %(data)s::text
FROM moved
RETURNING pg_notify('{CHANNEL}', %(payload)s)
"""
# Runs before a closing append, as a separate statement: ENQUEUE locks the row too, and the entry
# that it inserts is visible only to statements that begin after its commit.
LOCK = """
SELECT status, head, epoch FROM agentgraph_sessions WHERE session_id = %(session_id)s FOR UPDATE
"""
# Runs before the row of an inner session is inserted: until that is committed, nobody else can
# claim the parent, or forget it.
LOCK_EPOCH = """
SELECT 1 FROM agentgraph_sessions WHERE session_id = %(session_id)s AND epoch = %(epoch)s FOR SHARE
"""
INBOX_REMAINS = "SELECT 1 FROM agentgraph_inbox WHERE session_id = %(session_id)s LIMIT 1"
# Tells whether an append whose answer was lost was carried out: its last envelope is stored as
# sent.
ENVELOPE_EXISTS = """
SELECT 1 FROM agentgraph_envelopes
WHERE session_id = %(session_id)s AND sequence = %(sequence)s AND data = %(data)s
"""
# Locks the session's row, so that the session cannot end meanwhile. Returns no row for an unknown
# session, else the session's status and whether this statement has inserted the entry. An entry
# whose idempotency key exists is not inserted: FIND_KEY then returns the id stored under that key.
ENQUEUE = f"""
WITH target AS MATERIALIZED (
    SELECT status FROM agentgraph_sessions WHERE session_id = %(session_id)s FOR SHARE
), keyed AS (
    INSERT INTO agentgraph_keys (session_id, digest, envelope_id)
    SELECT %(session_id)s, %(digest)s::text, %(envelope_id)s FROM target
    WHERE %(digest)s::text IS NOT NULL AND status NOT IN ('closed', 'expired')
    ON CONFLICT DO NOTHING RETURNING 1
), arrived AS (
    INSERT INTO agentgraph_inbox (session_id, envelope_id, data)
    SELECT %(session_id)s, %(envelope_id)s, %(data)s FROM target
    WHERE status NOT IN ('closed', 'expired')
        AND (%(digest)s::text IS NULL OR EXISTS (SELECT 1 FROM keyed))
    ON CONFLICT DO NOTHING RETURNING 1
)
SELECT target.status,
    (SELECT pg_notify('{CHANNEL}', %(payload)s)::text FROM arrived) IS NOT NULL
FROM target
"""
SESSIONS_WITH = """
SELECT s.session_id FROM agentgraph_sessions s
WHERE s.session_id IN (
    SELECT session_id FROM agentgraph_envelopes WHERE envelope_id = %(id)s
    UNION SELECT session_id FROM agentgraph_inbox WHERE envelope_id = %(id)s
) ORDER BY s.ordinal
"""
FIND_KEY = """
SELECT k.envelope_id
FROM agentgraph_sessions s
LEFT JOIN agentgraph_keys k ON k.session_id = s.session_id AND k.digest = %(digest)s::text
WHERE s.session_id = %(session_id)s
"""
# Tells whether an ENQUEUE whose answer was lost was carried out: the entry is in the inbox, or has
# been admitted since.
IS_ACCEPTED = """
SELECT 1 FROM agentgraph_inbox
WHERE session_id = %(session_id)s AND envelope_id = %(envelope_id)s
UNION ALL
SELECT 1 FROM agentgraph_envelopes
WHERE session_id = %(session_id)s AND envelope_id = %(envelope_id)s
"""

STATUS = """
SELECT status, head, epoch FROM agentgraph_sessions WHERE session_id = %(session_id)s
"""
# Returns record, snapshot, head, attempts, owner, epoch, and the last stored sequence, as in
# SQLite. Head and last stored sequence differ where the end of a log is missing.
LOAD = """
SELECT record, snapshot, head, attempts, owner, epoch,
    (SELECT max(sequence) FROM agentgraph_envelopes e WHERE e.session_id = s.session_id),
    team, creator, created_at
FROM agentgraph_sessions s WHERE session_id = %(session_id)s
"""
# An outer join: a session without such envelopes gives one row, an unknown session none. A range
# and no LIMIT: without statistics the planner would sort all envelopes that follow, for each page.
READ = """
SELECT s.head, e.sequence, e.data
FROM agentgraph_sessions s LEFT JOIN agentgraph_envelopes e
    ON e.session_id = s.session_id AND e.sequence > %(after)s AND e.sequence <= %(upto)s
WHERE s.session_id = %(session_id)s ORDER BY e.sequence
"""
# LATERAL, so that the index on what views show is read backwards, and only as far as needed.
TAIL = """
SELECT s.said, e.said, e.sequence, e.data
FROM agentgraph_sessions s LEFT JOIN LATERAL (
    SELECT said, sequence, data FROM agentgraph_envelopes
    WHERE session_id = %(session_id)s AND said IS NOT NULL AND sequence <= %(before)s
    ORDER BY sequence DESC LIMIT %(count)s
) e ON true
WHERE s.session_id = %(session_id)s ORDER BY e.sequence DESC
"""
FIND = """
SELECT e.sequence, e.data
FROM agentgraph_sessions s
LEFT JOIN agentgraph_envelopes e
    ON e.session_id = s.session_id AND e.envelope_id = %(envelope_id)s
WHERE s.session_id = %(session_id)s
"""
INBOX = """
SELECT i.arrival, i.data
FROM agentgraph_sessions s LEFT JOIN agentgraph_inbox i ON i.session_id = s.session_id
WHERE s.session_id = %(session_id)s ORDER BY i.arrival
"""
# A hub has one lease row for all its sessions: a heartbeat costs the same for any number of them.
LEASE = """
SELECT s.owner, s.epoch, h.until
FROM agentgraph_sessions s LEFT JOIN agentgraph_hubs h ON h.owner = s.owner
WHERE s.session_id = %(session_id)s
"""
# Claims a session if its owner and epoch are still those that the caller has read. Unless `sure`,
# the owner's lease must also have expired: the owner may have renewed it since it was read.
CLAIM = """
UPDATE agentgraph_sessions SET owner = %(owner)s, epoch = epoch + 1
WHERE session_id = %(session_id)s AND epoch = %(epoch)s
    AND owner IS NOT DISTINCT FROM %(present)s::text
    AND NOT (%(at_rest)s AND runnable)
    AND (%(sure)s OR NOT EXISTS (
        SELECT 1 FROM agentgraph_hubs h WHERE h.owner = %(present)s::text AND h.until > %(now)s
    ))
RETURNING epoch
"""
RELEASE = """
UPDATE agentgraph_sessions
SET owner = NULL, attempts = coalesce(%(attempts)s::integer, attempts)
WHERE session_id = %(session_id)s AND owner = %(owner)s RETURNING 1
"""
# The epoch is checked: a hub that has lost the session must not count attempts of the new owner.
ATTEMPT = """
UPDATE agentgraph_sessions SET attempts = attempts + 1
WHERE session_id = %(session_id)s AND epoch = %(epoch)s RETURNING attempts
"""
HEARTBEAT = """
INSERT INTO agentgraph_hubs (owner, until) VALUES (%(owner)s, %(until)s)
ON CONFLICT (owner) DO UPDATE SET until = excluded.until
"""
# Also deletes leases that expired long ago: their owners were killed and cannot delete them.
RELEASE_ALL = f"""
WITH gone AS (
    DELETE FROM agentgraph_hubs WHERE owner = %(owner)s
        OR until < (SELECT until FROM agentgraph_hubs WHERE owner = %(owner)s) - %(keep_s)s
), given_back AS (
    UPDATE agentgraph_sessions SET owner = NULL WHERE owner = %(owner)s
)
SELECT pg_notify('{CHANNEL}', '')
"""
ORDINAL = "SELECT ordinal FROM agentgraph_sessions WHERE session_id = %(session_id)s"
CHILDREN = """
SELECT session_id FROM agentgraph_sessions WHERE parent = %(session_id)s ORDER BY ordinal
"""
# These run after LOCK, in its transaction. A table that later versions add for rows of sessions
# belongs here too. The session's own row, of which the others are found, is the last.
FORGET = (
    "UPDATE agentgraph_epochs SET lowest = greatest(lowest, %(epoch)s::bigint + 1)",
    "DELETE FROM agentgraph_labels WHERE ordinal = "
    "(SELECT ordinal FROM agentgraph_sessions WHERE session_id = %(session_id)s)",
    "DELETE FROM agentgraph_inbox WHERE session_id = %(session_id)s",
    "DELETE FROM agentgraph_keys WHERE session_id = %(session_id)s",
    "DELETE FROM agentgraph_envelopes WHERE session_id = %(session_id)s",
    "DELETE FROM agentgraph_blobs WHERE session_id = %(session_id)s",
    "DELETE FROM agentgraph_milestones WHERE session_id = %(session_id)s",
    "DELETE FROM agentgraph_live WHERE session_id = %(session_id)s",
    "DELETE FROM agentgraph_watchers WHERE session_id = %(session_id)s",
    "DELETE FROM agentgraph_webhooks WHERE session_id = %(session_id)s",
    "DELETE FROM agentgraph_sessions WHERE session_id = %(session_id)s",
)
# Each SELECT is answered by its own partial index.
# The last column tells whether the inbox has an entry.
UNFINISHED_SESSIONS = """
SELECT ordinal, session_id, 0 FROM agentgraph_sessions WHERE runnable
UNION SELECT ordinal, session_id, 0 FROM agentgraph_sessions WHERE due_at <= %(now)s
UNION SELECT s.ordinal, s.session_id, 1
    FROM agentgraph_inbox i JOIN agentgraph_sessions s ON s.session_id = i.session_id
    WHERE s.status NOT IN ('closed', 'expired')
UNION SELECT ordinal, session_id, 0 FROM agentgraph_sessions
    WHERE owner IS NOT NULL AND status IN ('closed', 'expired')
ORDER BY 1, 3
"""
OWNED_SESSIONS = """
SELECT session_id FROM agentgraph_sessions WHERE owner = %(owner)s ORDER BY ordinal
"""
NEXT_DUE = "SELECT min(due_at) FROM agentgraph_sessions WHERE due_at > %(after)s::double precision"
