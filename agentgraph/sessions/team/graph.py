"""A team's graph: the node `admit`, and one node for each speaker.

`admit` asks the session who is to speak. A speaker's node runs its participant, commits its packet,
and leads back to `admit`. For several speakers `admit` returns one `Send` each; they join at the
end of the super-step. All decisions are in the log, so a run can begin again at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

from langchain_core.messages import AIMessage, AnyMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.channels import UntrackedValue
from langgraph.graph import END, START
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from agentgraph.clock import new_id
from agentgraph.errors import SessionError
from agentgraph.graphs.compiled import AnyGraph
from agentgraph.participant import last_word
from agentgraph.sessions.rounds.owned_session import OwnedSession, current_owned_session
from agentgraph.sessions.rounds.round import Round
from agentgraph.sessions.team.inner_session import close_inner, outcome_of
from agentgraph.sessions.team.speaker import Speaker

ADMIT = "admit"
ASK_HUMAN = "ask_human"


class TeamState(TypedDict, total=False):
    """The state of a team's graph; everything else is in the log."""

    messages: Annotated[list[AnyMessage], UntrackedValue]
    listened: Annotated[bool, UntrackedValue]
    """Whether this run has taken its input."""
    place: Annotated[Mapping[str, str], UntrackedValue]
    """The team's place in an agent, and the agent's turn."""
    heard: str | None
    """The id of the last input message, where messages are stored and have ids."""
    session: str
    team_usage: Annotated[Mapping[str, Any], UntrackedValue]
    """The usage of this run, by agent."""
    stopped_by: Annotated[str | None, UntrackedValue]
    """The guard that has ended the session, None if no guard has."""
    round: int
    """The round under way: a checkpoint with another round is out of date."""


class Sessions(Protocol):
    """Finds the session of a graph that runs without a hub."""

    async def find(
        self, state: TeamState, config: RunnableConfig, *, takes_input: bool = False
    ) -> OwnedSession:
        """Return the session of a run; `takes_input` writes the run's input to its log."""
        ...


@dataclass(frozen=True, slots=True)
class TeamGraph:
    """The nodes of a team's graph."""

    speakers: Sequence[Speaker]
    sessions: Sessions
    most_at_once: int | None = None
    """How many speakers may be at work at once, None for all who are due."""

    def add_to(self, graph: AnyGraph) -> AnyGraph:
        """Add the nodes to a graph whose state is that of a team."""
        # The state of this graph: the nodes' own schema would clash with another type of messages.
        state = graph.state_schema
        names = [speaker.name for speaker in self.speakers]
        ends = (*names, ASK_HUMAN, END)
        for speaker in self.speakers:
            node = self.speaker_node(speaker)
            graph.add_node(speaker.name, node, destinations=(ADMIT,), input_schema=state)
        graph.add_node(ADMIT, self.admit, destinations=ends, input_schema=state)
        graph.add_node(ASK_HUMAN, self.ask_human, destinations=(ADMIT,), input_schema=state)
        graph.add_edge(START, ADMIT)
        return graph

    async def admit(self, state: TeamState, config: RunnableConfig) -> Command[Any]:
        """Admit waiting entries, and send to each speaker who is due; end the run if none is."""
        session = current_owned_session()
        session = session or await self.sessions.find(state, config, takes_input=True)
        input_note = _input_note(state)
        await session.admit()
        names = {speaker.name for speaker in self.speakers}
        due = [name for name in session.due if name in names]
        if not due:
            return await _pause(session, input_note)
        update = {"round": session.state.round, "session": session.id, **input_note}
        # Several speakers have a task each, so that an interrupt of one does not stop the others.
        due = due[: self.most_at_once]  # the others are due again once these have spoken
        if len(due) == 1:
            return Command(goto=due[0], update=update)
        sent_state = {"round": session.state.round, "session": session.id}
        return Command(goto=[Send(name, sent_state) for name in due], update=update)

    async def ask_human(self, state: TeamState, config: RunnableConfig) -> Command[Any]:
        """Interrupt the graph, so that its caller answers for the human whose turn it is."""
        session = current_owned_session() or await self.sessions.find(state, config)
        human = session.state.expected_next_speaker
        answer = interrupt({"waits_for": human, "session": session.id})
        # Who answers a private question answers in private.
        await session.say(str(answer), sender=str(human), audience=session.state.audience)
        return Command(goto=ADMIT)

    def speaker_node(self, speaker: Speaker) -> Callable[..., Awaitable[Command[Any]]]:
        """Return the node that runs a speaker's turn."""
        # A variable of the node: there LangGraph looks for nested graphs, to draw and to read them.
        graph = speaker.graph

        async def speak(state: TeamState, config: RunnableConfig) -> Command[Any]:
            session = current_owned_session() or await self.sessions.find(state, config)
            round = Round.begin(session, speaker.name)
            if round is not None:  # else the checkpoint is behind the log, which has this turn
                await replace(speaker, graph=graph).speak(round)
            return Command(goto=ADMIT)

        return speak


def _input_note(state: TeamState) -> dict[str, Any]:
    """Return the update that marks the run's input as taken."""
    messages = convert_to_messages(list(state.get("messages") or ()))
    return {"listened": True, "heard": messages[-1].id if messages else state.get("heard")}


async def _pause(session: OwnedSession, input_note: Mapping[str, Any]) -> Command[Any]:
    """End the run: a caller in a graph gets the last answer, a hub reads the log."""
    if not session.is_in_graph:
        return Command(goto=END, update=dict(input_note))
    state, outer_input = session.state, session.outer_input
    waits_for = state.expected_next_speaker if state.status == "waiting_human" else None
    if waits_for and (session.record.parent is not None or waits_for != session.record.creator):
        return Command(goto=ASK_HUMAN, update=dict(input_note))
    if outer_input is not None and outer_input.ledger is not None:
        await close_inner(session)
    envelopes = await session.log.read(session.id, session.sequence_before_run)
    outcome = outcome_of(envelopes, session.record)
    if session.state.pending_close_reason == "round_failed":
        if outer_input is not None:
            outcome.record_usage(outer_input.part)
        raise SessionError("a round of the team failed for good", code="round_failed")
    if outer_input is not None:
        outer_input.count_hops(session.state.hops)
    update = {"team_usage": outcome.usage, "stopped_by": outcome.stopped_by, **input_note}
    if outcome.stopped_by is not None:
        update["messages"] = [last_word(outcome.stopped_by, outcome.cause, new_id())]
    elif outcome.last is not None:
        last = outcome.last
        update["messages"] = [AIMessage(last.text, id=last.envelope_id, name=last.sender_id)]
    return Command(goto=END, update=update)
