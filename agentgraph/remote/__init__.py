"""Members of a conversation that run on another server."""

from agentgraph.remote.member import RemoteMember, is_remote
from agentgraph.remote.thread import read_messages, unseen_messages, with_ids

__all__ = ["RemoteMember", "is_remote", "read_messages", "unseen_messages", "with_ids"]
