"""What a task reads from its config: channels, its checkpoint, the graph around its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.message import add_messages
from langgraph.pregel.protocol import StreamProtocol

from agentgraph.blocking import is_synchronous
from agentgraph.graphs.compiled import AnyGraph
from agentgraph.graphs.private import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_READ,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_STREAM,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    INTERRUPT,
    NS_SEP,
    ensure_config,
)
from agentgraph.storage import with_async_methods


def is_kept(graph: AnyGraph, channel: str) -> bool:
    """Tell whether a channel's value is stored in checkpoints."""
    return not isinstance(graph.channels[channel], UntrackedValue)


def read_value(config: RunnableConfig, key: str) -> Any:
    """Read one channel in a task; None where the channel is empty or does not exist."""
    return config[CONF][CONFIG_KEY_READ](key, False)


def read_state(config: RunnableConfig, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """Read channels in a task that a `Send` has started, which carries no state."""
    values: Mapping[str, Any] = config[CONF][CONFIG_KEY_READ](list(keys), False)
    return values


def whole_state(config: RunnableConfig) -> Mapping[str, Any]:
    """Read the whole state at a task's begin, without LangGraph's internal channels."""
    read = config[CONF][CONFIG_KEY_READ]
    own = ("branch:", "__")
    values: Mapping[str, Any] = read([name for name in read.args[1] if not name.startswith(own)])
    return values


def task_id_of(config: RunnableConfig) -> str:
    """Return the id of a task: the same when the task runs again from the same checkpoint."""
    return str(config.get(CONF, {}).get(CONFIG_KEY_TASK_ID) or "")


def has_parent(config: RunnableConfig) -> bool:
    """Tell whether the graph of a node runs inside of another graph's node."""
    return NS_SEP in str(config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINT_NS, ""))


def begun_from(
    config: RunnableConfig,
) -> tuple[BaseCheckpointSaver[Any], RunnableConfig] | None:
    """Return the saver of a node's run, and the checkpoint from which the node began."""
    values = config.get(CONF, {})
    saver = values.get(CONFIG_KEY_CHECKPOINTER)
    level = str(values.get(CONFIG_KEY_CHECKPOINT_NS, "")).rpartition(NS_SEP)[0]
    checkpoint_id = (values.get(CONFIG_KEY_CHECKPOINT_MAP) or {}).get(level)
    if checkpoint_id is None or not isinstance(saver, BaseCheckpointSaver):
        return None
    at = {CONFIG_KEY_CHECKPOINT_NS: level, CONFIG_KEY_CHECKPOINT_ID: checkpoint_id}
    if is_synchronous():
        saver = with_async_methods(saver)
    return saver, {CONF: {CONFIG_KEY_THREAD_ID: values[CONFIG_KEY_THREAD_ID], **at}}


def thread_in(config: RunnableConfig) -> tuple[BaseCheckpointSaver[Any], str] | None:
    """Return the saver and the id of the thread that a node's run is stored on, None without."""
    origin = begun_from(config)
    return None if origin is None else (origin[0], origin[1][CONF][CONFIG_KEY_THREAD_ID])


def has_saver(config: RunnableConfig) -> bool:
    """Tell whether a node's run is stored."""
    return isinstance(config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINTER), BaseCheckpointSaver)


def with_saver(config: RunnableConfig, saver: BaseCheckpointSaver[Any]) -> RunnableConfig:
    """Return a config by which a run is stored by this saver, in place of its graph's own."""
    return {**config, CONF: {**config.get(CONF, {}), CONFIG_KEY_CHECKPOINTER: saver}}


def may_have_run(config: RunnableConfig) -> bool:
    """Tell whether a node may have run from this checkpoint before: its graph was resumed there.

    In all later super-steps of a run the checkpoint is new, and nobody has written to it.
    """
    return bool(config.get(CONF, {}).get(CONFIG_KEY_RESUMING))


def stores_each_step(config: RunnableConfig) -> bool:
    """Tell whether each step of a run is stored before the next one begins."""
    return config.get(CONF, {}).get(CONFIG_KEY_DURABILITY) == "sync"


def stores_meanwhile(config: RunnableConfig) -> bool:
    """Tell whether each step of a run is stored while the next one runs."""
    return config.get(CONF, {}).get(CONFIG_KEY_DURABILITY) == "async"


def is_node(*configs: RunnableConfig | None) -> bool:
    """Tell whether a graph that is run with these configs is inside of a node of another graph."""
    return CONFIG_KEY_TASK_ID in ensure_config(*configs)[CONF]


def is_part_of_snapshot(config: RunnableConfig) -> bool:
    """Tell whether a state is read as a part of the state of the graph around it."""
    return CONFIG_KEY_CHECKPOINTER in config.get(CONF, {})


def concatenates(config: RunnableConfig | None, key: str) -> bool:
    """Tell whether the graph around a node only adds to a list of messages, as `+` does.

    Then a message with the id of an earlier one does not replace that one.
    """
    read = ensure_config(config)[CONF].get(CONFIG_KEY_READ)
    channel = None if read is None else read.args[1].get(key)
    reducer = getattr(channel, "operator", None)
    if reducer is None or reducer is add_messages:
        return False
    try:
        return len(reducer([_PROBE], [_PROBE])) == 2
    except Exception:  # a function of the user, which may expect other values
        return False


_PROBE = HumanMessage("", id="probe")


def has_stream(config: RunnableConfig | None) -> bool:
    """Tell whether a stream around it shows what a nested graph does."""
    return ensure_config(config)[CONF].get(CONFIG_KEY_STREAM) is not None


def hide_in_stream(
    config: RunnableConfig | None, channels: frozenset[str]
) -> RunnableConfig | None:
    """Return the config for a nested graph of which the stream shows no such channels.

    It concerns the streams of values and updates of the nested graph itself, not of graphs below.
    """
    values = ensure_config(config)[CONF]
    stream: Any = values.get(CONFIG_KEY_STREAM)
    if stream is None:
        return config
    own = tuple(str(values[CONFIG_KEY_CHECKPOINT_NS]).split(NS_SEP))

    def send(chunk: Any) -> None:
        namespace, mode, payload = chunk
        # LangGraph numbers the namespaces of the further graphs that one task runs.
        is_own = namespace[: len(own)] == own and all(map(str.isdigit, namespace[len(own) :]))
        if is_own and mode == "values":
            payload = _without(channels, payload)
        elif is_own and mode == "updates":
            payload = {node: _without(channels, update) for node, update in payload.items()}
        stream((namespace, mode, payload))

    conf = {**(config or {}).get(CONF, {}), CONFIG_KEY_STREAM: StreamProtocol(send, stream.modes)}
    return {**(config or {}), CONF: conf}


def _without(channels: frozenset[str], update: Any) -> Any:
    """Return an update without some channels; None where nothing is left, as LangGraph has it."""
    if isinstance(update, list):
        parts = [_without(channels, part) for part in update]
        return [part for part in parts if part is not None] or None
    if not isinstance(update, dict):
        return update
    return {key: value for key, value in update.items() if key not in channels} or None


def answers_to(config: RunnableConfig) -> int:
    """Return how many of a task's own questions a human has decided before this resumption."""
    return len(config[CONF][CONFIG_KEY_SCRATCHPAD].resume)


async def current_question() -> object:
    """Return the last question that the task around this code has asked, None without one.

    The task asked it before it was resumed, maybe in another process.
    """
    config = ensure_config()
    origin = begun_from(config)
    if origin is None:
        return None
    saver, at = origin
    checkpoint = await saver.aget_tuple(at)
    task_id = config[CONF].get(CONFIG_KEY_TASK_ID)
    writes = checkpoint.pending_writes if checkpoint is not None else None
    questions = [
        value for owner, name, value in writes or () if owner == task_id and name == INTERRUPT
    ]
    return questions[-1][-1].value if questions else None


def has_answer(config: RunnableConfig) -> bool:
    """Tell whether a task is resumed with a human's decision, with or without a question's id."""
    scratchpad = config[CONF][CONFIG_KEY_SCRATCHPAD]
    return bool(scratchpad.resume) or scratchpad.get_null_resume(False) is not None
