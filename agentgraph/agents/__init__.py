"""Agents: a specification (`spec`), the nodes it compiles to (`nodes`), its runs (`run`).

Imports point one way: `spec`, `nodes`, `build`, `run`, and on top `agent`, the class users write.
"""

from agentgraph.agents.agent import Agent
from agentgraph.agents.nodes.call_model import Citation
from agentgraph.agents.run.inputs import Input
from agentgraph.agents.run.reply import Reply
from agentgraph.agents.spec.intents import Intent
from agentgraph.outcomes import Interrupt
from agentgraph.usage import Usage

__all__ = ["Agent", "Citation", "Input", "Intent", "Interrupt", "Reply", "Usage"]
