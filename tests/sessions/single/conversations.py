"""One conversation with an agent, held on a thread of LangGraph or in a session of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.messages import AnyMessage, HumanMessage

from agentgraph import Agent, Session
from agentgraph.agents.run.reply import Reply
from agentgraph.outcomes import Interrupt
from agentgraph.sessions import Answer


@dataclass(frozen=True)
class Seen:
    """What a person sees of an answer, without ids."""

    text: str
    agent: str | None
    asked: tuple[object, ...] = ()
    output: object = None
    close_reason: str | None = None
    tokens: int = 0


class Conversation(Protocol):
    """A conversation with one agent."""

    async def say(self, content: Any) -> Seen:
        """Say something, and return the answer."""
        ...

    async def decide(self, *decisions: object) -> Seen:
        """Decide what was asked, in its order, and return the answer."""
        ...

    async def cut_off(self, content: Any, when: asyncio.Event) -> None:
        """Say something, and end the run without an answer once the event is set."""
        ...

    async def history(self) -> list[AnyMessage]:
        """Return the whole conversation."""
        ...


@dataclass
class OnThread:
    """A conversation on a thread."""

    agent: Agent[Any]
    questions: Sequence[Interrupt] = ()

    async def say(self, content: Any) -> Seen:
        return self._seen(await self.agent.ainvoke(_input(content), thread_id="t"))

    async def decide(self, *decisions: object) -> Seen:
        ids = [question.id for question in self.questions]
        by_id = dict(zip(ids, decisions, strict=True))
        return self._seen(await self.agent.aresume("t", by_id))

    async def cut_off(self, content: Any, when: asyncio.Event) -> None:
        run = asyncio.ensure_future(self.agent.ainvoke(_input(content), thread_id="t"))
        await when.wait()
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run

    async def history(self) -> list[AnyMessage]:
        return await self.agent.ahistory("t")

    def _seen(self, reply: Reply[Any]) -> Seen:
        self.questions = reply.interrupts
        return Seen(
            reply.text,
            reply.agent,
            tuple(question.payload for question in reply.interrupts),
            reply.output,
            reply.close_reason,
            reply.usage.total_tokens,
        )


@dataclass
class InSession:
    """A conversation in a session."""

    session: Session
    questions: Sequence[Interrupt] = ()
    run_id: str = ""
    tokens: int = 0
    """The tokens of this input in what was seen before."""

    async def say(self, content: Any) -> Seen:
        return self._seen(await self.session.ask(content))

    async def decide(self, *decisions: object) -> Seen:
        for question, decision in zip(self.questions, decisions, strict=True):
            await self.session.decide(question.id, decision)
        await self.session.settled()
        return self._seen(await self.session.answer(self.run_id))

    async def cut_off(self, content: Any, when: asyncio.Event) -> None:
        await self.session.send("user", content)
        await when.wait()
        await self.session.cancel()

    async def history(self) -> list[AnyMessage]:
        return await self.session.messages()

    def _seen(self, answer: Answer) -> Seen:
        earlier = self.tokens if answer.run_id == self.run_id else 0
        self.questions, self.run_id = answer.interrupts, answer.run_id
        self.tokens = answer.usage.total_tokens
        return Seen(
            answer.text,
            answer.agent,
            tuple(question.payload for question in answer.interrupts),
            answer.output,
            answer.close_reason,
            answer.usage.total_tokens - earlier,
        )


def _input(content: Any) -> Any:
    return HumanMessage(content) if isinstance(content, list) else content
