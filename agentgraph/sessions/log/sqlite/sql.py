"""The SQL statements on sessions in a SQLite file that are longer than a line."""

from __future__ import annotations

# Inserts nothing if a session with this id exists; the row count shows which was the case.
CREATE = """
INSERT INTO agentgraph_sessions
    (session_id, tenant, team, creator, parent, created_at, status, runnable, due_at, head, said,
     snapshot, metadata, record, epoch)
VALUES
    (:session_id, :tenant, :team, :creator, :parent, :created_at, :status, :runnable, :due_at,
     :head, :said, :snapshot, :metadata, :record,
     (SELECT lowest FROM agentgraph_epochs))
ON CONFLICT DO NOTHING
"""
# Moves the head of a session if the head is where the caller expects it, and returns the number of
# envelopes before that views show; no row means a conflict, which `rows.refusal` explains.
UPDATE_HEAD = """
UPDATE agentgraph_sessions SET
    status = :status, runnable = :runnable, due_at = :due_at, snapshot = :snapshot,
    head = head + :count, said = said + :said, attempts = coalesce(:attempts, attempts)
WHERE session_id = :session_id AND head = :head AND status NOT IN ('closed', 'expired')
    AND (:epoch IS NULL OR epoch = :epoch)
RETURNING said - :said
"""
ADD_ENVELOPE = """
INSERT INTO agentgraph_envelopes (session_id, sequence, envelope_id, said, data)
VALUES (?, ?, ?, ?, ?)
"""
# Nobody else has written one of this sequence, unless the end of the log was removed by hand.
ADD_MILESTONE = """
INSERT OR REPLACE INTO agentgraph_milestones (session_id, sequence, snapshot) VALUES (?, ?, ?)
"""
MILESTONE = """
SELECT sequence, snapshot FROM agentgraph_milestones
WHERE session_id = ? AND sequence <= ? ORDER BY sequence DESC LIMIT 1
"""
# Record, snapshot, head, attempts, owner, epoch, and the last stored sequence. Head and last stored
# sequence differ where the end of a log is missing.
LOAD = """
SELECT record, snapshot, head, attempts, owner, epoch,
    (SELECT max(sequence) FROM agentgraph_envelopes e WHERE e.session_id = s.session_id),
    team, creator, created_at
FROM agentgraph_sessions s WHERE session_id = ?
"""
# An outer join: a session without such envelopes gives one row, an unknown session none.
# Bytes are read faster than text, of which the connection decodes each.
READ = """
SELECT s.head, e.sequence, CAST(e.data AS BLOB)
FROM agentgraph_sessions s
LEFT JOIN agentgraph_envelopes e ON e.session_id = s.session_id AND e.sequence > :after
WHERE s.session_id = :session_id ORDER BY e.sequence LIMIT :limit
"""
# Counts of the envelopes that views show, their numbers, sequences and data, the newest first. The
# numbers show whether an envelope is missing, without reading the envelopes between them.
TAIL = """
SELECT s.said, e.said, e.sequence, e.data
FROM agentgraph_sessions s
LEFT JOIN agentgraph_envelopes e
    ON e.session_id = s.session_id AND e.said IS NOT NULL AND e.sequence <= :before
WHERE s.session_id = :session_id ORDER BY e.sequence DESC LIMIT :count
"""
FIND = """
SELECT e.sequence, e.data
FROM agentgraph_sessions s
LEFT JOIN agentgraph_envelopes e ON e.session_id = s.session_id AND e.envelope_id = ?
WHERE s.session_id = ?
"""
SESSIONS_WITH = """
SELECT s.session_id FROM agentgraph_sessions s
WHERE s.session_id IN (
    SELECT session_id FROM agentgraph_envelopes WHERE envelope_id = :id
    UNION SELECT session_id FROM agentgraph_inbox WHERE envelope_id = :id
) ORDER BY s.ordinal
"""
FIND_KEY = """
SELECT k.envelope_id
FROM agentgraph_sessions s
LEFT JOIN agentgraph_keys k ON k.session_id = s.session_id AND k.digest = ?
WHERE s.session_id = ?
"""
INBOX = """
SELECT i.arrival, i.data
FROM agentgraph_sessions s LEFT JOIN agentgraph_inbox i ON i.session_id = s.session_id
WHERE s.session_id = ? ORDER BY i.arrival
"""
# A hub has one lease row for all its sessions: a heartbeat costs the same for any number of them.
LEASE = """
SELECT s.owner, s.epoch, h.until
FROM agentgraph_sessions s LEFT JOIN agentgraph_hubs h ON h.owner = s.owner
WHERE s.session_id = ?
"""
# Claims a session if its owner and epoch are still those that the caller has read. Unless `sure`,
# the owner's lease must also have expired: the owner may have renewed it since it was read.
CLAIM = """
UPDATE agentgraph_sessions SET owner = :owner, epoch = epoch + 1
WHERE session_id = :session_id AND epoch = :epoch AND owner IS :present
AND NOT (:at_rest AND runnable) AND (:sure OR NOT EXISTS (
    SELECT 1 FROM agentgraph_hubs h WHERE h.owner = :present AND h.until > :now
))
RETURNING epoch
"""
# Also deletes leases that expired long ago: their owners were killed and cannot delete them.
RELEASE_ALL = """
DELETE FROM agentgraph_hubs
WHERE owner = :owner OR until < (SELECT until FROM agentgraph_hubs WHERE owner = :owner) - :keep_s
"""
# A table that later versions add for rows of sessions belongs here too. The session's own row, of
# which the others are found, is the last.
FORGET = (
    "UPDATE agentgraph_epochs SET lowest = max(lowest, :epoch + 1)",
    "DELETE FROM agentgraph_labels WHERE ordinal = "
    "(SELECT ordinal FROM agentgraph_sessions WHERE session_id = :session_id)",
    "DELETE FROM agentgraph_inbox WHERE session_id = :session_id",
    "DELETE FROM agentgraph_keys WHERE session_id = :session_id",
    "DELETE FROM agentgraph_envelopes WHERE session_id = :session_id",
    "DELETE FROM agentgraph_blobs WHERE session_id = :session_id",
    "DELETE FROM agentgraph_milestones WHERE session_id = :session_id",
    "DELETE FROM agentgraph_live WHERE session_id = :session_id",
    "DELETE FROM agentgraph_watchers WHERE session_id = :session_id",
    "DELETE FROM agentgraph_webhooks WHERE session_id = :session_id",
    "DELETE FROM agentgraph_sessions WHERE session_id = :session_id",
)
SHARE_BLOB = """
INSERT INTO agentgraph_blobs (session_id, digest, data)
SELECT ?, digest, data FROM agentgraph_blobs WHERE session_id = ? AND digest = ?
"""
# The indexes are named: for ORDER BY the planner would otherwise scan all sessions.
# The last column tells whether the inbox has an entry.
UNFINISHED_SESSIONS = """
SELECT ordinal, session_id, 0 FROM agentgraph_sessions WHERE runnable = 1
UNION SELECT ordinal, session_id, 0
    FROM agentgraph_sessions INDEXED BY agentgraph_sessions_due WHERE due_at <= ?
UNION SELECT s.ordinal, s.session_id, 1
    FROM agentgraph_inbox i CROSS JOIN agentgraph_sessions s ON s.session_id = i.session_id
    WHERE s.status NOT IN ('closed', 'expired')
UNION SELECT ordinal, session_id, 0
    FROM agentgraph_sessions INDEXED BY agentgraph_sessions_left
    WHERE owner IS NOT NULL AND status IN ('closed', 'expired')
ORDER BY 1, 3
"""
# A counter keeps the last number of the inbox, and `SessionFile.forget` makes up for the other rows
# that it removes: so the sum grows with every change.
CHANGES = """
SELECT ifnull((SELECT max(place) FROM agentgraph_envelopes), 0)
    + ifnull((SELECT max(ordinal) FROM agentgraph_sessions), 0)
    + ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'agentgraph_inbox'), 0)
    + (SELECT count FROM agentgraph_changes)
"""
