"""A visit to a remote graph: its thread on the server, its questions, until it has answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.types import Command, interrupt

from agentgraph.graphs.task import answers_to, has_answer
from agentgraph.history import unknown_outcomes
from agentgraph.remote.relay import RemoteRelay
from agentgraph.remote.thread import RemoteThread, read_messages, unseen_messages

if TYPE_CHECKING:
    from langgraph.pregel.remote import RemoteGraph
    from langgraph_sdk.client import LangGraphClient

_NOTE = "agentgraph"
"""The key of the questions asked here in the metadata of a thread on the server."""
_MODES: Any = ["values", "updates", "messages", "custom"]


class Visit:
    """One visit to a remote graph, until it has answered."""

    def __init__(
        self,
        graph: RemoteGraph,
        client: LangGraphClient,
        thread: RemoteThread,
        messages: Sequence[AnyMessage],
        config: RunnableConfig,
    ) -> None:
        self._graph = graph
        self._client = client
        self._thread = thread
        self._messages = messages
        self._task = str(config.get("configurable", {}).get("checkpoint_ns"))
        self._relay = RemoteRelay(config, thread.messages)
        self._is_resumed = has_answer(config)
        # Asked again, LangGraph returns the answers that this task has already, in their order.
        self._given_answers = [interrupt(None) for _ in range(answers_to(config))]
        self._answers: dict[str, Any] = {}
        self._asked_ids: list[str] = []
        self._questions = thread.questions

    async def answer(self) -> Sequence[AnyMessage]:
        """Run the graph until it asks nothing more; return the new messages."""
        await self._read_answers()
        all_messages, new_input = self._thread.messages, self._new_input()
        has_answered = self._thread.is_idle and not self._questions and not new_input
        if has_answered:  # before this process was cut off
            return unseen_messages(all_messages, self._messages)
        graph_input: Any = None
        if new_input:
            graph_input = {"messages": [*unknown_outcomes(all_messages), *new_input]}
        async with self._relay:
            while True:
                if self._questions:
                    graph_input = Command(resume=await self._decision())
                all_messages = await self._run(graph_input)
                if not self._questions:
                    return unseen_messages(all_messages, self._messages)

    async def _read_answers(self) -> None:
        """Read which questions the answers are to: the server has a note of this task's."""
        if self._given_answers and self._thread.id is not None:
            thread: Any = await self._client.threads.get(self._thread.id)
            note = (thread.get("metadata") or {}).get(_NOTE) or {}
            if note.get("task") == self._task:
                self._answers = dict(zip(note["asked"], self._given_answers, strict=False))
                self._asked_ids = list(self._answers)

    def _new_input(self) -> Sequence[AnyMessage]:
        """Return what the server has not got; a new input drops its open questions."""
        new_input = unseen_messages(self._messages, self._thread.messages)
        if self._questions and self._is_resumed:
            return ()  # the state of this graph may lack its input
        if new_input:
            self._questions = {}
        return new_input

    async def _decision(self) -> dict[str, Any]:
        """Return the answer to one open question, by its id; interrupt until there is one."""
        for key in self._questions.keys() & self._answers.keys():
            return {key: self._answers.pop(key)}
        key, question = next(iter(self._questions.items()))
        self._asked_ids.append(key)
        if self._thread.id is not None:
            note = {_NOTE: {"task": self._task, "asked": self._asked_ids}}
            await self._client.threads.update(self._thread.id, metadata=note)
        schema = question.get("response_schema")
        return {key: interrupt(question["value"], response_schema=schema)}

    async def _run(self, graph_input: Any) -> Sequence[AnyMessage]:
        """Run the graph once; return all its messages, and note its questions."""
        at = {} if self._thread.id is None else {"thread_id": self._thread.id}
        values: Mapping[str, Any] = {}
        parts: Any = self._graph.astream(
            graph_input,
            {"configurable": at},
            stream_mode=_MODES,
            subgraphs=True,
            version="v2",
            on_disconnect="cancel",
            multitask_strategy="interrupt",
        )
        async with aclosing(parts):
            async for part in parts:
                if part["type"] == "custom":
                    get_stream_writer()(part["data"])
                elif part["type"] != "values":
                    await self._relay.tell(part["type"], part["data"])
                elif not part["ns"]:
                    values, questions = part["data"], part["interrupts"]
                    self._questions = {
                        question.id: {
                            "value": question.value,
                            "response_schema": question.response_schema,
                        }
                        for question in questions
                    }
        return read_messages(values.get("messages") or ())
