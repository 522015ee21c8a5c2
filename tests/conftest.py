"""The environment of every test."""

from __future__ import annotations

import os

# LangGraph reads this once, when it is first imported: with it, a checkpoint holds only types that
# are known to be safe, and one that is not fails here rather than at a user's.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"

# A test must not reach a database, a model or a tracer of whoever runs it.
for _name in list(os.environ):
    if _name in {"POSTGRES_URL", "AGENTGRAPH_MODEL", "OPENAI_API_KEY"} or _name.startswith(
        ("LANGSMITH_", "LANGCHAIN_")
    ):
        del os.environ[_name]

from hypothesis import settings  # noqa: E402

from tests.postgres import postgres, postgres_server, postgres_url  # noqa: E402

__all__ = ["postgres", "postgres_server", "postgres_url"]

# No deadline per example: on a busy machine it would fail what is only slow.
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
