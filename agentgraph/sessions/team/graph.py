"""A team's graph: the node `admit`, and around it one node for each who may speak.

`admit` asks the session who is to speak, each speaker's node runs its participant and commits its
packet, and all of them lead back to `admit`. Several speakers are one `Send` each: the super-step
is where they join. What is decided stands in the log, so a run can be begun anew at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import UntrackedValue
from langgraph.graph import END, START
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from agentgraph.errors import SessionError
from agentgraph.patching import AnyGraph, Patcher
from agentgraph.sessions.hub.live import LiveSession
from agentgraph.sessions.team.outcome import outcome_of
from agentgraph.sessions.team.private_session import last_heard, left
from agentgraph.sessions.team.speaker import Speaker

ADMIT = "admit"
ASK_HUMAN = "ask_human"

Table: TypeAlias = Callable[..., Awaitable[LiveSession]]
"""Finds the session that a run is of."""


class TeamState(TypedDict, total=False):
    """What a team's graph holds; the log has the rest."""

    messages: Annotated[list[AnyMessage], UntrackedValue]
    listened: Annotated[bool, UntrackedValue]
    """Whether this run has heard what it was given."""
    place: Annotated[Mapping[str, str], UntrackedValue]
    """Where in an agent this is, and in which turn."""
    heard: str | None
    """The last message that was heard, where messages are kept and have ids."""
    session: str
    team_usage: Annotated[Mapping[str, Any], UntrackedValue]
    """The tokens that this run has used, by agent."""
    stopped_by: Annotated[str | None, UntrackedValue]
    """The guard that has ended its session, if one has."""
    round: int
    """The round that is under way: a checkpoint of another one is out of date."""


def take_turns(speakers: Sequence[Speaker], table: Table) -> Patcher:
    """Make a graph take turns as its session's rules say."""

    async def admit(state: TeamState, config: RunnableConfig) -> Command[Any]:
        live = await table(state, config, listens=True)
        heard = last_heard(state)
        await live.admit()
        due = [name for name in live.due if name in known]
        if not due:
            return await _pause(live, heard)
        update = {"round": live.state.round, "session": live.id, **heard}
        if len(due) == 1:
            return Command(goto=due[0], update=update)
        sent = {"round": live.state.round, "session": live.id}
        return Command(goto=[Send(name, sent) for name in due], update=update)

    async def ask_human(state: TeamState, config: RunnableConfig) -> Command[Any]:
        live = await table(state, config)
        human = live.state.expected_next_speaker
        said = interrupt({"waits_for": human, "session": live.id})
        await live.hear(str(said), sender=str(human))
        return Command(goto=ADMIT)

    known = {speaker.name for speaker in speakers}

    def patch(graph: AnyGraph) -> AnyGraph:
        state = graph.state_schema  # the nodes' own would clash with another kind of messages
        for speaker in speakers:
            node = _node(speaker, table)
            graph.add_node(speaker.name, node, destinations=(ADMIT,), input_schema=state)
        ends = (*known, ASK_HUMAN, END)
        graph.add_node(ADMIT, admit, destinations=ends, input_schema=state)
        graph.add_node(ASK_HUMAN, ask_human, destinations=(ADMIT,), input_schema=state)
        graph.add_edge(START, ADMIT)
        return graph

    return Patcher(patch)


def _node(speaker: Speaker, table: Table) -> Callable[..., Awaitable[Command[Any]]]:
    async def speak(state: TeamState, config: RunnableConfig) -> Command[Any]:
        live = await table(state, config)
        round = live.begin(speaker.name)
        if round is not None:  # else a checkpoint is behind the log: it has been said already
            await speaker.speak(round)
        return Command(goto=ADMIT)

    return speak


async def _pause(live: LiveSession, heard: Mapping[str, Any]) -> Command[Any]:
    """End the run: a caller in the graph gets the last words, a hub reads the log."""
    if not live.inside_graph:
        return Command(goto=END, update=dict(heard))
    waits_for = live.state.expected_next_speaker if live.state.status == "waiting_human" else None
    if waits_for and (live.record.parent is not None or waits_for != live.record.creator):
        return Command(goto=ASK_HUMAN, update=dict(heard))
    if live.around is not None and live.around.ledger is not None:
        await left(live)
    came = outcome_of(await live.log.read(live.id, live.heard_at), live.people)
    if live.state.pending_close_reason == "round_failed":
        if live.around is not None:
            came.charge(live.around.part)
        raise SessionError("a round of the team failed for good", code="round_failed")
    if live.around is not None:
        live.around.count_hops(live.state.hops)
    update = {"team_usage": came.used, "stopped_by": came.stopped_by, **heard}
    if came.last is not None and came.stopped_by is None:
        last = came.last
        update["messages"] = [AIMessage(last.text, id=last.envelope_id, name=last.sender_id)]
    return Command(goto=END, update=update)
