"""How one agent becomes a graph."""

from agentgraph.agents.nodes.content import Citation
from agentgraph.agents.run.reply import Interrupt, Reply
from agentgraph.agents.run.runner import Input
from agentgraph.agents.spec.agent import Agent
from agentgraph.agents.spec.intents import Intent
from agentgraph.usage import Usage

__all__ = ["Agent", "Citation", "Input", "Intent", "Interrupt", "Reply", "Usage"]
