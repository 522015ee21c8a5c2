"""Multi-agent framework for LangGraph: supervisors, sub-agents, declared routing, logged sessions."""

__version__ = "0.1.0"
