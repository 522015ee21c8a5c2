"""A conversation with an agent, line by line, each turn of it a run that can be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langgraph.types import Command

from agentgraph.agents import Agent, Interrupt
from agentgraph.cli.terminal.decisions import decision_of
from agentgraph.cli.terminal.keyboard import ReadLine
from agentgraph.cli.terminal.screen import YOU, Screen
from agentgraph.history import OUTCOME_UNKNOWN


class Conversation:
    """One thread of an agent's, on one event loop from the first turn to the last."""

    def __init__(
        self, agent: Agent, thread_id: str, *, screen: Screen, read: ReadLine, interactive: bool
    ) -> None:
        self._agent = agent
        self._thread_id = thread_id
        self._screen = screen
        self._read = read
        self._interactive = interactive
        self._questions: tuple[Interrupt, ...] = ()
        self._running = False
        self.failed = False
        """Whether a turn has failed."""

    def hold(self, runner: asyncio.Runner) -> None:
        """Go on until the input ends; where nobody types, Ctrl-C ends it too."""
        runner.run(self._recall())
        while True:
            try:
                given = self._decisions() if self._questions else self._message()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._leave_open()
                continue
            self._turn(runner, given)

    async def _recall(self) -> None:
        messages = await self._agent.ahistory(self._thread_id)
        await self._look()
        self._screen.recall(_without_waiting(messages) if self._questions else messages)
        if not self._questions:
            self._screen.blank()

    async def _look(self) -> None:
        self._questions = await self._agent.ainterrupts(self._thread_id)

    def _message(self) -> str:
        while not (line := self._read(YOU)).strip():
            pass
        return line

    def _decisions(self) -> Command[Any]:
        decided: dict[str, object] = {}
        for number, question in enumerate(self._questions, 1):
            several = len(self._questions) > 1
            self._screen.ask(question, f" ({number} of {len(self._questions)})" if several else "")
            while not (line := self._read("decision> ")).strip():
                pass
            decided[question.id] = decision_of(line, question)
        return Command(resume=decided)

    def _leave_open(self) -> None:
        if not self._interactive:
            raise KeyboardInterrupt
        open_ = "Left open: a message goes on without the decision. " if self._questions else ""
        self._screen.interrupted(f"{open_}Ctrl-D leaves.")
        self._questions = ()

    def _turn(self, runner: asyncio.Runner, given: str | Command[Any]) -> None:
        self._screen.start()
        self._questions = ()
        self._attempt(runner, self._run(given))
        self._attempt(runner, self._look())  # a run that was cancelled or failed may wait, too
        if not self._questions:
            self._screen.blank()

    def _attempt(self, runner: asyncio.Runner, work: Coroutine[Any, Any, None]) -> None:
        try:
            runner.run(work)
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            if self._running:  # Ctrl-C came again while the turn was still being cancelled
                self._screen.interrupted("Leaving before the turn has ended.")
                raise KeyboardInterrupt from error
            self._screen.interrupted("Cancelled.")
            if not self._interactive:
                raise
        except Exception as error:
            self.failed = True
            self._screen.fail(error)

    async def _run(self, given: str | Command[Any]) -> None:
        self._running = True
        try:
            async with aclosing(self._agent.astream(given, thread_id=self._thread_id)) as events:
                async for event in events:
                    self._screen.show(event)
        finally:
            self._running = False


def _without_waiting(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Leave out that the outcome of the last turn's calls is unknown: they wait for a decision."""
    turn = max((i for i, m in enumerate(messages) if isinstance(m, HumanMessage)), default=0)
    return [
        message
        for i, message in enumerate(messages)
        if i < turn
        or not isinstance(message, ToolMessage)
        or not message.text.startswith(OUTCOME_UNKNOWN)
    ]
