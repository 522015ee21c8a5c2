"""The peers: which module plays each, in which environment, on which kind of store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CONTESTANTS", "PROPERTIES", "Contestant"]


PROPERTIES = {
    "prefix continuation": "Killed in the third step and resumed: neither of the first two runs "
    "again, and the third does.",
    "effect once": "Killed after the charge was made and before its step is recorded, and resumed: "
    "the charge is looked up or told of as unknown, not repeated in silence.",
    "fork determinism": "Forked twice where it asks: the forks begin equal, ask anew, take "
    "opposite answers, and only the one that was answered with yes pays.",
    "checkpoint validity": "A text where the state has a number is refused when it is written. "
    "The newest record, cut in half, is detected when it is read.",
    "consume once": "Eight processes answer yes at once: one payment. Killed after the payment, "
    "the run does not take a no for it.",
    "recovery determinism": "Three copies of a store are recovered, one of them killed and "
    "recovered again: all end equal.",
    "liveness": "Killed at six points, from the first step to after the payment: the run can be "
    "brought to its end within two minutes.",
}
"""What is probed, in the order of the page."""


@dataclass(frozen=True)
class Contestant:
    """A framework, with a store and a way of persistence."""

    key: str
    title: str
    module: str
    environment: str
    """The name of its requirements and of its environment; "" is this project's own."""
    packages: tuple[str, ...]
    way: str
    """Its documented way of persistence and resume, in words."""
    store: Literal["files", "postgres"] = "files"
    effects: str = ""
    """Its documented mechanism for an effect of unknown outcome; "" if there is none."""
    notes: str = ""


CONTESTANTS = (
    Contestant(
        "agentgraph-sqlite",
        "agentgraph, thread on SQLite",
        "agentgraph_threads",
        "",
        ("langgraph-agentgraph", "langgraph"),
        "an Agent on a thread of a sqlite:/// URL, durability sync, effect with lookup, interrupt",
        effects="effect and its lookup",
    ),
    Contestant(
        "agentgraph-postgres",
        "agentgraph, thread on Postgres",
        "agentgraph_threads",
        "",
        ("langgraph-agentgraph", "langgraph"),
        "the same on a postgresql:// URL",
        store="postgres",
        effects="effect and its lookup",
    ),
    Contestant(
        "agentgraph-session",
        "agentgraph, session on SQLite",
        "agentgraph_sessions",
        "",
        ("langgraph-agentgraph", "langgraph"),
        "the same agent in a Team, in sessions of a Hub, durability step",
        effects="effect and its lookup",
        notes="A fork is made of envelopes: the round under way begins anew in it, with its tools.",
    ),
    Contestant(
        "langgraph-sqlite",
        "LangGraph, SQLite",
        "langgraph",
        "langgraph",
        ("langgraph", "langgraph-checkpoint-sqlite"),
        "a StateGraph with a pydantic state, AsyncSqliteSaver, durability sync, interrupt",
    ),
    Contestant(
        "langgraph-postgres",
        "LangGraph, Postgres",
        "langgraph",
        "langgraph",
        ("langgraph", "langgraph-checkpoint-postgres"),
        "the same with AsyncPostgresSaver",
        store="postgres",
    ),
    Contestant(
        "agent-framework",
        "Microsoft Agent Framework",
        "agent_framework",
        "agent_framework",
        ("agent-framework-core",),
        "a workflow with FileCheckpointStorage, resumed from its latest checkpoint, request_info",
    ),
    Contestant(
        "pydantic-graph",
        "pydantic-graph 1",
        "pydantic_graph",
        "pydantic_graph",
        ("pydantic-graph",),
        "a Graph with FileStatePersistence, taken up by iter_from_persistence",
        notes="A file lock gives an open node to one process. pydantic-graph 2 has no persistence.",
    ),
    Contestant(
        "openai-agents",
        "OpenAI Agents SDK",
        "openai_agents",
        "openai_agents",
        ("openai-agents",),
        "SQLiteSession, RunState in a file while a tool needs approval",
        notes="The session has the outputs of tools at once; the file of the state is the user's.",
    ),
    Contestant(
        "crewai-persist",
        "CrewAI, persist",
        "crewai_flows",
        "crewai",
        ("crewai",),
        "a flow with @persist on SQLite, taken up by the id of its state, human_feedback",
    ),
    Contestant(
        "crewai-checkpoints",
        "CrewAI, checkpoints",
        "crewai_checkpoints",
        "crewai",
        ("crewai",),
        "the same flow with CheckpointConfig after each method, taken up by from_checkpoint",
        notes="Checkpoints are written beside the next step, so a kill soon after a step loses it.",
    ),
    Contestant(
        "ag2",
        "AG2, network",
        "ag2_network",
        "ag2",
        ("ag2",),
        "a workflow channel of a hub on SqliteKnowledgeStore, resume_pending_turns",
        notes="A step is the turn of an agent of its own, whose packet is the record.",
    ),
)
