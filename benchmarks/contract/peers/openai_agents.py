"""OpenAI Agents SDK: `SQLiteSession` and `RunState`, by "Sessions" and "Human-in-the-loop".

The tool that pays has `needs_approval=True`. A run that waits is written as `RunState.to_string`,
as the page's example writes `result.json`, and is taken up by `RunState.from_string`, `approve` or
`reject`, and `Runner.run`. The pages know no other way to take up a run: after a kill the session
is asked again, which is the nearest ("Running agents" names integrations of others for it).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    RunState,
    SQLiteSession,
    Usage,
    function_tool,
)
from agents.testing import assistant_message, function_call

from benchmarks.contract.scenario import (
    STEPS,
    NotOffered,
    Outcome,
    astep,
    cut,
    job,
    play,
    wait_for_the_others,
)

NAMES = (*STEPS, "pay")


class Script(Model):
    """Calls the first tool that has no output yet."""

    async def get_response(self, *positional: Any, **named: Any) -> ModelResponse:
        items = named["input"] if "input" in named else positional[1]
        outputs = _outputs(items if isinstance(items, list) else [])
        item: Any
        if len(outputs) < len(NAMES):
            item = function_call(NAMES[len(outputs)], {}, call_id=f"call-{len(outputs)}")
        else:
            item = assistant_message(outputs[-1])
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    async def stream_response(self, *positional: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("the scenario does not stream")
        yield


@function_tool
async def draft() -> str:
    """Write a draft."""
    await astep("draft")
    return "draft"


@function_tool
async def charge() -> str:
    """Charge the customer."""
    await astep("charge")
    return "charge"


@function_tool
async def report() -> str:
    """Report."""
    await astep("report")
    return "report"


@function_tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    await astep("pay")
    return "paid"


AGENT = Agent(name="clerk", model=Script(), tools=[draft, charge, report, pay])


class OpenAIAgents:
    def __init__(self) -> None:
        self._session = SQLiteSession(job().run, Path(job().store) / "sessions.db")
        self._path = Path(job().store) / f"{job().run}.json"

    async def begin(self) -> Outcome:
        if job().misfit:
            raise NotOffered("a run's context and a session's items have no schema of the user's")
        return await self._run("pay the bill")

    async def resume(self) -> Outcome:
        if self._path.exists():
            await self._state()  # it waits: there is nothing to go on with
            return await self.state()
        return await self._run("go on")

    async def answer(self) -> Outcome:
        state = await self._state()
        wait_for_the_others()
        for item in state.get_interruptions():
            if job().value == "yes":
                state.approve(item)
            else:
                state.reject(item)
        return await self._run(state)

    async def state(self) -> Outcome:
        outputs = _outputs(await self._session.get_items())
        if self._path.exists():
            # What waits is in the state: its outputs may not be in the session yet.
            state = await self._state()
            waits = bool(state.get_interruptions())
            return Outcome("asks" if waits else "open", {"done": outputs})
        answer = "" if len(outputs) < len(NAMES) else _answer(outputs)
        return Outcome("ended" if answer else "open", {"done": outputs}, answer)

    async def fork(self) -> Outcome:
        raise NotOffered("branches are of conversations, at a user's turn, not of a run that waits")

    async def tear(self) -> Outcome:
        cut(self._path)
        return Outcome("torn")

    async def _state(self) -> Any:
        if not self._path.exists():
            raise LookupError("no run waits")
        return await RunState.from_string(AGENT, self._path.read_text("utf-8"))

    async def _run(self, given: Any) -> Outcome:
        result = await Runner.run(AGENT, given, session=self._session)
        outputs = _outputs(result.to_input_list())
        if result.interruptions:
            new = self._path.with_suffix(".new")
            new.write_text(result.to_state().to_string(), "utf-8")
            os.replace(new, self._path)
            return Outcome("asks", {"done": outputs})
        self._path.unlink(missing_ok=True)
        return Outcome("ended", {"done": outputs}, _answer(outputs))


def _answer(outputs: list[str]) -> str:
    return "paid" if outputs[-1] == "paid" else "refused"


def _outputs(items: list[Any]) -> list[str]:
    return [str(item["output"]) for item in items if item.get("type") == "function_call_output"]


if __name__ == "__main__":
    play(OpenAIAgents)
