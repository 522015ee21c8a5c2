"""A conversation with an agent, line by line; each turn is a run, which Ctrl-C cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

from langgraph.types import Command

from agentgraph.agents import Agent, Input, Interrupt
from agentgraph.cli.terminal.decisions import decision_of
from agentgraph.cli.terminal.keyboard import ReadLine
from agentgraph.cli.terminal.screen import YOU, Screen


class Conversation:
    """A conversation on one thread; all turns run on one event loop.

    Agents keep connections that belong to the loop that opened them, so a new loop per turn would
    break them.
    """

    def __init__(
        self, agent: Agent, thread_id: str, *, screen: Screen, read: ReadLine, interactive: bool
    ) -> None:
        self._agent = agent
        self._thread_id = thread_id
        self._screen = screen
        self._read = read
        self._interactive = interactive
        self._questions: tuple[Interrupt, ...] = ()
        """The thread's open questions; while there are any, lines are read as decisions."""
        self._is_running = False
        self.has_failed = False
        """Whether any turn has failed."""

    def run(self, runner: asyncio.Runner) -> None:
        """Converse until the input ends; if stdin is a pipe, Ctrl-C ends the conversation too."""
        runner.run(self._recall())
        while True:
            try:
                message = self._read_decisions() if self._questions else self._read_message()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._leave_open()
                continue
            self._turn(runner, message)

    async def _recall(self) -> None:
        """Show the thread's messages, and load its open questions."""
        messages = await self._agent.ahistory(self._thread_id)
        await self._load_questions()
        self._screen.recall(messages)
        if not self._questions:
            self._screen.blank()

    async def _load_questions(self) -> None:
        self._questions = await self._agent.ainterrupts(self._thread_id)

    def _read_message(self) -> str:
        """Read lines until one has text."""
        while not (line := self._read(YOU)).strip():
            pass
        return line

    def _read_decisions(self) -> Command[Any]:
        """Ask all open questions, one after another, and return the decisions."""
        decisions: dict[str, object] = {}
        for number, question in enumerate(self._questions, 1):
            several = len(self._questions) > 1
            self._screen.ask(question, f" ({number} of {len(self._questions)})" if several else "")
            while not (line := self._read("decision> ")).strip():
                pass
            decisions[question.id] = decision_of(line, question)
        return Command(resume=decisions)

    def _leave_open(self) -> None:
        """Leave the questions undecided: the next line is read as a message."""
        if not self._interactive:
            raise KeyboardInterrupt
        open_ = "Left open: a message goes on without the decision. " if self._questions else ""
        self._screen.note_interrupt(f"{open_}Ctrl-D leaves.")
        self._questions = ()

    def _turn(self, runner: asyncio.Runner, message: Input) -> None:
        """Run one turn, then load the thread's open questions."""
        self._screen.start()
        self._questions = ()
        self._run_to_end(runner, self._stream(message))
        # Also after a cancelled or failed run: it may have asked a question before.
        self._run_to_end(runner, self._load_questions())
        if not self._questions:
            self._screen.blank()

    def _run_to_end(self, runner: asyncio.Runner, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine; show its error or its cancellation by Ctrl-C, and return normally."""
        try:
            runner.run(work)
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            if self._is_running:  # a second Ctrl-C, before the first had cancelled the turn
                self._screen.note_interrupt("Leaving before the turn has ended.")
                raise KeyboardInterrupt from error
            self._screen.note_interrupt("Cancelled.")
            if not self._interactive:
                raise
        except Exception as error:
            self.has_failed = True
            self._screen.fail(error)

    async def _stream(self, message: Input) -> None:
        """Run the agent on a message, and show its events."""
        self._is_running = True
        try:
            async with aclosing(self._agent.astream(message, thread_id=self._thread_id)) as events:
                async for event in events:
                    self._screen.show(event)
        finally:
            self._is_running = False
