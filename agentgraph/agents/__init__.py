"""How one agent becomes a graph."""

from agentgraph.agents.agent import Agent
from agentgraph.agents.content import Citation
from agentgraph.agents.intents import Intent
from agentgraph.agents.reply import Interrupt, Reply
from agentgraph.agents.runner import Input
from agentgraph.usage import Usage

__all__ = ["Agent", "Citation", "Input", "Intent", "Interrupt", "Reply", "Usage"]
