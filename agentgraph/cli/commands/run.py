"""`agentgraph run`: a flow, an agent or a team at work on one task, with its progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgraph.cli.exits import FAILED, INTERRUPTED, OPEN_QUESTION, errors_reported, fail
from agentgraph.clock import new_id

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from agentgraph.agents import Input
    from agentgraph.cli.target import Target
    from agentgraph.cli.terminal.run_output import RunOutput
    from agentgraph.outcomes import Interrupt
    from agentgraph.stream import FinalStateEvent


def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:FLOW", show_default=False)],
    input: Annotated[str, typer.Argument(metavar="INPUT", show_default=False)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: an event in each line, then the result.")
    ] = False,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Run it on this thread.")] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep it in memory, sqlite:///file.db or postgresql://…; "
            "else where the flow does, in POSTGRES_URL, or in agentgraph.db here.",
        ),
    ] = None,
) -> None:
    """Run a flow, an agent or a team on one input, and print its outcome.

    The progress is a tree on a terminal; where the output is piped, it is on stderr, and the
    outcome alone on stdout. Exits with 0 when it is finished, 1 when it has failed or was aborted,
    3 when it waits for a human's decision, and 2 for a wrong call.
    """
    from agentgraph.cli.target import TARGETS, load_all
    from agentgraph.cli.terminal.run_output import output_for

    with errors_reported():
        [participant] = load_all([target], TARGETS)
        work = _work_of(participant, thread or new_id(), store)
        output = output_for(participant, as_json=as_json)
        with asyncio.Runner() as runner:
            try:
                result = _run(runner, work, output, input)
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
        output.end(result)
        raise typer.Exit(_STATUSES[result["status"]])


_STATUSES: Mapping[str, int] = {
    "finished": 0,
    "aborted": FAILED,
    "failed": FAILED,
    "waiting": OPEN_QUESTION,
}


@dataclass(slots=True)
class _Work:
    """What runs, on which thread, and what is known of its end."""

    target: Target
    thread_id: str
    last: FinalStateEvent | None = None
    text: str = ""
    """What was said last."""
    questions: list[Interrupt] = field(default_factory=list)

    def stream(self, input: Input, callbacks: Sequence[Any]) -> AsyncGenerator[Any, None]:
        """Begin, or go on."""
        from agentgraph.sessions import Team

        self.questions.clear()
        if isinstance(self.target, Team):
            return self.target.astream(str(input))
        config: RunnableConfig = {"callbacks": [*callbacks]}
        return self.target.astream(input, thread_id=self.thread_id, config=config)

    def note(self, item: object) -> None:
        """Note what the end is made of."""
        from agentgraph.outcomes import Interrupt
        from agentgraph.sessions import Envelope
        from agentgraph.stream import FinalStateEvent, InterruptEvent

        match item:
            case InterruptEvent():
                question = Interrupt(item.id, item.payload, item.response_schema, item.agent)
                self.questions.append(question)
            case FinalStateEvent():
                self.last, self.text = item, item.text
            case Envelope() if item.text and item.sender_id != "user":
                self.text = item.text

    async def result(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        from agentgraph.flow import Flow

        usage = {} if self.last is None else {"usage": self.last.usage}
        if isinstance(self.target, Flow):
            return {**(await self.target.aresult(self.thread_id)).to_dict(), **usage}
        reason = None if self.last is None else self.last.close_reason
        status = "waiting" if self.questions else "aborted" if reason else "finished"
        interrupts = [question.to_dict() for question in self.questions]
        own = {"status": status, "text": self.text, "reason": reason or "", **usage}
        return {**own, "interrupts": interrupts, "thread_id": self.thread_id}


def _work_of(participant: Target, thread_id: str, store: str | None) -> _Work:
    """Return what runs, with its store; a team has none, and runs in memory."""
    from agentgraph.cli.stores import with_store
    from agentgraph.sessions import Team

    if not isinstance(participant, Team):
        return _Work(with_store(participant, store).agent, thread_id)
    if store is not None:
        fail("--store: a team runs in memory here; `agentgraph serve` keeps its sessions")
    return _Work(participant, thread_id)


def _run(runner: asyncio.Runner, work: _Work, output: RunOutput, input: str) -> dict[str, Any]:
    """Run it to its end; a person at the terminal is asked what it asks."""
    message: Input = input
    while True:
        try:
            runner.run(_stream(work, output, message))
            result: dict[str, Any] = runner.run(work.result())
        except Exception as error:  # of a model, a tool, a store: its events have told it
            code = getattr(error, "code", None) or type(error).__name__
            return {"status": "failed", "reason": code, "text": str(error)}
        if not work.questions or not output.may_ask:
            return result
        try:
            message = output.decisions_on(work.questions)
        except (EOFError, KeyboardInterrupt):
            return result


async def _stream(work: _Work, output: RunOutput, message: Input) -> None:
    output.progress.start()
    try:
        async with aclosing(work.stream(message, output.callbacks)) as items:
            async for item in items:
                work.note(item)
                output.progress.show(item)
    finally:
        output.progress.stop()
