"""How one agent becomes a graph."""

from agentgraph.agents.agent import Agent
from agentgraph.agents.content import Citation
from agentgraph.agents.intents import Intent
from agentgraph.agents.reply import Interrupt, Reply, Usage

__all__ = ["Agent", "Citation", "Intent", "Interrupt", "Reply", "Usage"]
