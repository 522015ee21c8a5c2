"""Helpers for tests of agents: a model that follows a script, and a clock that stands still.

model = ScriptedModel(["Hello.", call("refund", reason="charged twice"), "It is done."])
assert model.requests[0].tools == ("refund",)

with FakeClock().installed() as clock:
    clock.advance(60)

A turn of the script is a text, a `call` (or several), a `bad_call`, an `AIMessage`, an exception, a
`Turn` with usage and metadata, or a `Fault`: slow, cut off, refused. The model asks `check_history`
whether a provider would take the messages; a test can ask it too.
"""

from agentgraph.testing.answers import Fault, Turn, bad_call, call
from agentgraph.testing.clock import FakeClock
from agentgraph.testing.history_check import IllegalHistory, check_history
from agentgraph.testing.script import Request, ScriptExhausted
from agentgraph.testing.scripted_model import ScriptedModel

__all__ = [
    "FakeClock",
    "Fault",
    "IllegalHistory",
    "Request",
    "ScriptExhausted",
    "ScriptedModel",
    "Turn",
    "bad_call",
    "call",
    "check_history",
]
