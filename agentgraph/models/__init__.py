"""Models: which one answers, how often its client asks, and what its answer costs.

`resolve_model` takes a chat model, a name such as "openai:<name>", or None. For None it returns the
model of `AGENTGRAPH_MODEL`, else `OfflineModel`, which needs no network. `attempting_once` switches
off the retries of a model's client. `name_fault` says what is wrong with a name. `price_of` returns
the cost of a call.
"""

from agentgraph.models.names import name_fault
from agentgraph.models.offline import OfflineModel
from agentgraph.models.resolve import attempting_once, resolve_model
from agentgraph.usage import price_of

__all__ = ["OfflineModel", "attempting_once", "name_fault", "price_of", "resolve_model"]
