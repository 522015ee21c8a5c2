"""The effect log of a thread: what is written is read, and an action costs the same at the end."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent, effect
from agentgraph.guards.records.effect_log import EffectLog, LoggedEffects
from agentgraph.storage import open_saver
from agentgraph.testing import ScriptedModel, call

_STEPS = 40

growth = st.lists(
    st.tuples(
        st.sampled_from(["action", "outcome", "message", "restart", "undo", "next input"]),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=25,
)


class NoteSizes(InMemorySaver):
    """A saver that notes how large each part of the effect log is."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if config["configurable"]["checkpoint_ns"].startswith("agentgraph_effects"):
            self.sizes.append(len(str(metadata)))
        return await super().aput(config, checkpoint, metadata, new_versions)


@given(growth)
def test_log_has_what_was_stored_last(steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        saver = open_saver("memory")
        log, state = EffectLog(saver, "t"), LoggedEffects("turn 0", (None,))
        for number, (kind, place) in enumerate(steps):
            state = _grown(state, kind, number, place)
            if kind == "restart":
                log = EffectLog(saver, "t")
            await log.store(state)
            stored = await EffectLog(saver, "t").read()
            assert stored is not None
            assert (stored.turn, stored.before) == (state.turn, state.before)
            assert (stored.entries, stored.undone_by) == (state.entries, state.undone_by)
            assert stored.journal == state.journal

    asyncio.run(play())


async def test_action_costs_the_same_however_many_were_before_it() -> None:
    @effect(compensate=lambda number: None)
    def book(number: int) -> str:
        """Book a seat."""
        return f"seat {number} is booked"

    answers: list[Any] = [call("book", number=number) for number in range(_STEPS)]
    saver = NoteSizes()
    agent = Agent("a", model=ScriptedModel([*answers, "Done."]), tools=[book], checkpointer=saver)
    reply = await agent.ainvoke("book all", thread_id="t")
    assert reply.text == "Done."
    assert len(saver.sizes) >= _STEPS
    early, late = sum(saver.sizes[4:8]), sum(saver.sizes[-4:])
    assert late < 1.5 * early


def _grown(state: LoggedEffects, kind: str, number: int, place: int) -> LoggedEffects:
    """Return a state of the log after one more thing has happened."""
    entries, journal = dict(state.entries), {**state.journal}
    undone_by = state.undone_by
    match kind:
        case "action":
            entries[f"key {number}"] = {"number": number, "state": "started"}
        case "outcome" if entries:
            key = sorted(entries)[place % len(entries)]
            entries[key] = {**entries[key], "state": "done", "result": number}
        case "message":
            call_id = None if place < 3 else f"call {place}"
            journal[call_id] = [*journal.get(call_id, ()), AIMessage("said", id=str(number))]
        case "undo":
            undone_by = "budget"
        case "next input":
            return LoggedEffects(f"turn {number}", (state.turn,))
    return LoggedEffects(state.turn, state.before, entries, undone_by, journal)
