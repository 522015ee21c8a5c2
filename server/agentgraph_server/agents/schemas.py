"""The JSON of requests and answers, as pydantic models; OpenAPI shows their docstrings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StringConstraints,
)

from agentgraph import Agent, Flow, FlowResult, Reply
from agentgraph.participant import Participant
from agentgraph.sessions import Answer as SessionAnswer
from agentgraph.sessions.hub.questions import OpenQuestion
from agentgraph_server.masking import public_tool_message
from agentgraph_server.wire import JsonValue, RequestBody, Text, check_storable, json_value


def _check_not_blank(text: str) -> str:
    """Raise `ValueError` for a text without any visible character."""
    if not text.strip():
        raise ValueError("the prompt is blank: say something")
    return text


# Dots alone are refused: in a URL's path they mean another folder.
_THREAD_ID = r"^\.*[A-Za-z0-9_~:@+=|-][A-Za-z0-9._~:@+=|-]*$"
ThreadId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=128, pattern=_THREAD_ID),
    Field(description="The conversation; a new one is begun without it.", examples=["42"]),
]


class Prompt(RequestBody):
    """What is said to an agent."""

    prompt: Annotated[
        str,
        Field(min_length=1, max_length=100_000, examples=["I was charged twice"]),
        AfterValidator(_check_not_blank),
    ]
    thread_id: ThreadId | None = None


class Decisions(RequestBody):
    """What a human has decided, by the ids of the interrupts."""

    thread_id: ThreadId
    decisions: Annotated[
        dict[str, Any], Field(min_length=1, max_length=1_000), AfterValidator(check_storable)
    ]


class Question(BaseModel):
    """What a run waits for."""

    id: str
    payload: JsonValue
    response_schema: JsonValue = None


class Answer(BaseModel):
    """What an agent has answered, or asks."""

    text: Text
    agent: str
    thread_id: str
    output: JsonValue = None
    usage: dict[str, Any] = {}
    interrupts: list[Question] = []
    close_reason: str | None = None

    @classmethod
    def of(cls, reply: Reply[Any] | FlowResult[Any], name: str) -> Answer:
        """Read the reply of an agent, or the result of a flow, of this name."""
        if isinstance(reply, FlowResult):
            speaker, reason = name, reply.reason if reply.status == "aborted" else None
        else:
            speaker, reason = reply.agent, reply.close_reason
        return cls(
            text=reply.text,
            agent=speaker,
            thread_id=reply.thread_id,
            output=reply.output,
            usage=reply.usage.to_dict(),
            interrupts=[Question.model_validate(i, from_attributes=True) for i in reply.interrupts],
            close_reason=reason,
        )

    @classmethod
    def of_session(
        cls, answer: SessionAnswer, questions: Sequence[OpenQuestion], name: str, thread_id: str
    ) -> Answer:
        """Read the answer of a session, which an agent of this name has given."""
        return cls(
            text="" if questions else answer.text,
            agent=answer.agent or name,
            thread_id=thread_id,
            output=answer.output,
            usage=answer.usage.to_dict(),
            interrupts=[Question.model_validate(q, from_attributes=True) for q in questions],
            close_reason=answer.close_reason,
        )


class ToolCard(BaseModel):
    """A tool, as its agent's model knows it."""

    name: str
    description: str = ""


class AgentCard(BaseModel):
    """Who an agent is."""

    name: str
    description: str = ""
    tools: list[ToolCard] = []
    agents: list[AgentCard] = []

    @classmethod
    def of(cls, participant: Participant) -> AgentCard:
        """Describe an agent, and those below it."""
        card = cls(name=participant.name, description=participant.description)
        if isinstance(participant, Agent):
            card.tools = tools_of(participant)
            card.agents = [cls.of(below) for below in participant.sub_agents]
        if isinstance(participant, Flow):
            card.agents = [cls.of(worker) for worker in participant.participants]
        return card


class AgentDetail(AgentCard):
    """Who an agent is, and what it compiles to."""

    mermaid: str = Field(description="The graph of the whole tree, as Mermaid text.")


class ThreadMessage(BaseModel):
    """A message of a conversation."""

    id: str
    type: str
    text: Text
    name: str | None = None
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str | None = None
    status: Literal["success", "error"] | None = None

    @classmethod
    def of(cls, message: AnyMessage) -> ThreadMessage:
        """Read a message of LangChain's."""
        if isinstance(message, ToolMessage):
            message = public_tool_message(message)
        view = cls(
            id=message.id or "", type=message.type, text=str(message.text), name=message.name
        )
        if isinstance(message, AIMessage):
            calls = message.tool_calls
            view.tool_calls = [
                {k: json_value(call[k]) for k in ("id", "name", "args")} for call in calls
            ]
        if isinstance(message, ToolMessage):
            view.tool_call_id, view.status = message.tool_call_id, message.status
        return view


class Thread(BaseModel):
    """A conversation so far."""

    thread_id: str
    busy: bool
    messages: list[ThreadMessage]
    interrupts: list[Question]


def tools_of(agent: Agent) -> list[ToolCard]:
    """Return all tools of an agent's model, except handoffs."""
    own = [ToolCard(name=tool.name, description=tool.description) for tool in agent.own_tools]
    agent_tools = [
        ToolCard(name=tool.agent.name, description=tool.agent.description)
        for tool in agent.agent_tools
    ]
    native = [ToolCard(name=str(t.get("name") or t.get("type"))) for t in agent.native_tools]
    return [*own, *agent_tools, *native]
