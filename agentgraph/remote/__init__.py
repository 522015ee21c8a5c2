"""What is elsewhere: members of a conversation on another server, and who asks from there."""

from agentgraph.remote.member import RemoteMember, is_remote
from agentgraph.remote.principal import Principal, current_principal
from agentgraph.remote.thread import read_messages, unseen_messages, with_ids

__all__ = [
    "Principal",
    "RemoteMember",
    "current_principal",
    "is_remote",
    "read_messages",
    "unseen_messages",
    "with_ids",
]
