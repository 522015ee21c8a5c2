"""The stream of a run's events: in order, through a bounded queue, with the models' tokens."""

from agentgraph.telling.emitter import EventBuffer, EventEmitter, PutEvent, event_stream
from agentgraph.telling.model_callbacks import AGENT_TAG, FOREIGN_TAG, MOVES_TAG, ModelCallbacks

__all__ = [
    "AGENT_TAG",
    "FOREIGN_TAG",
    "MOVES_TAG",
    "EventBuffer",
    "EventEmitter",
    "ModelCallbacks",
    "PutEvent",
    "event_stream",
]
