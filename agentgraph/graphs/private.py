"""The private parts of LangGraph that this project uses; no other module imports any.

A new version of LangGraph may change them, so `tests/graphs/test_private.py` uses each.
"""

from __future__ import annotations

from langgraph._internal._config import ensure_config as ensure_config
from langgraph._internal._constants import CONF as CONF
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINT_ID as CONFIG_KEY_CHECKPOINT_ID
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINT_MAP as CONFIG_KEY_CHECKPOINT_MAP
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINT_NS as CONFIG_KEY_CHECKPOINT_NS
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINTER as CONFIG_KEY_CHECKPOINTER
from langgraph._internal._constants import CONFIG_KEY_DURABILITY as CONFIG_KEY_DURABILITY
from langgraph._internal._constants import CONFIG_KEY_READ as CONFIG_KEY_READ
from langgraph._internal._constants import CONFIG_KEY_RESUMING as CONFIG_KEY_RESUMING
from langgraph._internal._constants import CONFIG_KEY_RUNTIME as CONFIG_KEY_RUNTIME
from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD as CONFIG_KEY_SCRATCHPAD
from langgraph._internal._constants import CONFIG_KEY_STREAM as CONFIG_KEY_STREAM
from langgraph._internal._constants import CONFIG_KEY_TASK_ID as CONFIG_KEY_TASK_ID
from langgraph._internal._constants import CONFIG_KEY_THREAD_ID as CONFIG_KEY_THREAD_ID
from langgraph._internal._constants import INTERRUPT as INTERRUPT
from langgraph._internal._constants import NS_SEP as NS_SEP
from langgraph._internal._constants import PUSH as PUSH
from langgraph._internal._constants import TASKS as TASKS
from langgraph._internal._runnable import RunnableCallable as RunnableCallable
from langgraph._internal._runnable import RunnableSeq as RunnableSeq
from langgraph._internal._typing import MISSING as MISSING
from langgraph.graph._branch import BranchSpec as BranchSpec
from langgraph.graph.state import _DEFAULT_ERROR_HANDLER_NODE
from langgraph.pregel._write import PASSTHROUGH as PASSTHROUGH
from langgraph.pregel._write import SKIP_WRITE as SKIP_WRITE
from langgraph.pregel._write import ChannelWrite as ChannelWrite
from langgraph.pregel._write import ChannelWriteEntry as ChannelWriteEntry
from langgraph.pregel._write import ChannelWriteTupleEntry as ChannelWriteTupleEntry

DEFAULT_ERROR_HANDLER = _DEFAULT_ERROR_HANDLER_NODE
"""The node that LangGraph adds for the errors of all nodes without a handler of their own."""
