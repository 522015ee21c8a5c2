"""The stream of a run's events: in order, through a bounded queue, with the models' tokens."""

from agentgraph.telling.emitter import EventEmitter, PutEvent, event_stream
from agentgraph.telling.model_callbacks import AGENT_TAG, FOREIGN_TAG, MOVES_TAG, ModelCallbacks

__all__ = [
    "AGENT_TAG",
    "FOREIGN_TAG",
    "MOVES_TAG",
    "EventEmitter",
    "ModelCallbacks",
    "PutEvent",
    "event_stream",
]
