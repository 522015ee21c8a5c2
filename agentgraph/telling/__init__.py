"""A run as it happens: its events in order behind a bounded queue, its tokens among them."""

from agentgraph.telling.listener import AGENT_TAG, FOREIGN_TAG, Listener
from agentgraph.telling.teller import Put, Teller, follow

__all__ = ["AGENT_TAG", "FOREIGN_TAG", "Listener", "Put", "Teller", "follow"]
