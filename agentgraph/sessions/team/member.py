"""A participant's place in a team: whom it may hand over to, and what it is told of the others."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, Field, WithJsonSchema, create_model
from pydantic_core import to_json

from agentgraph.errors import AgentGraphError
from agentgraph.guards import Effect
from agentgraph.outcomes import Handoff
from agentgraph.participant import HANDOFF_TOOL, SILENCE_TOOL, Verdict
from agentgraph.phases import HandoffPolicy, HandoffRequest, HandoffResult, validate_handoff
from agentgraph.phases.handoff import HandoffCode
from agentgraph.sessions.hub.round import current_round

HUMAN = "human"


@dataclass(frozen=True)
class TeamSeat:
    """One participant's place."""

    name: str
    others: Mapping[str, str]
    """The names of the other participants, and what each is good for."""
    policy: HandoffPolicy
    offers_handoff: bool
    is_supervisor: bool = False
    effects: MutableMapping[str, Effect] = field(default_factory=dict)
    """How the actions of all in the team are undone: each place adds its own."""

    @cached_property
    def peers(self) -> frozenset[str]:
        """The names to which a `Handoff` may lead from here."""
        return frozenset({*self.policy.participants, *self.policy.aliases, HUMAN})

    @cached_property
    def tools(self) -> Sequence[BaseTool]:
        """The tools that come with the place."""
        handoff = [_handoff_tool(self)] if self.offers_handoff or self.is_supervisor else []
        return [*handoff, *([_silence()] if self.is_supervisor else [])]

    @cached_property
    def prompt(self) -> str:
        """Where it is, for its model."""
        others = ", ".join(
            f"{name} ({about})" if about else name for name, about in self.others.items()
        )
        told = f"You are {self.name}. Others here: {others or 'nobody'}."
        if self.is_supervisor:
            return f"{told} {_SUPERVISES}"
        return f"{told} {_MARKS}"

    def refuse(self, guard: str, reason: str) -> Verdict:
        """Refuse a handoff that a guard does not let through."""
        code: HandoffCode = "hop_limit" if guard == "hop_limit" else "guard"
        return Verdict(to_json(asdict(HandoffResult(False, code, reason))).decode(), None)

    def judge(self, handoff: Handoff) -> Verdict:
        """Accept a handoff to a peer, or say why not."""
        now = current_round()
        if now is None:
            raise AgentGraphError("a handoff outside of a round", code="outside_round")
        state = now.state
        named = self.policy.aliases.get(handoff.target, handoff.target)
        human = named if named in state.humans else None
        request = HandoffRequest(
            # Whoever is human can be asked in any phase, by their own name too.
            HUMAN if human is not None else handoff.target,
            handoff.reason,
            handoff.summary,
            handoff.next_phase,
            handoff.channel_escalation,  # type: ignore[arg-type]  # checked there
        )
        policy = now.policy(self.policy)
        # The guards count hops, over all levels: the state has none of this round's.
        result = validate_handoff(request, policy, caller=self.name, phase=state.phase)
        text = to_json(asdict(result)).decode()
        if not result.accepted:
            return Verdict(text, None)
        target = result.new_agent_id or human or HUMAN
        accepted = Handoff(
            target, handoff.reason, handoff.summary, result.new_phase, handoff.channel_escalation
        )
        return Verdict(text, accepted, is_hop=result.new_agent_id is not None)


_MARKS = "What they say begins with [their name]; answer without such a mark."
_SUPERVISES = (
    "You see all that they say, and what each says begins with [their name]. Call `stay_silent` "
    "unless you must intervene: what you say is said to all of them."
)


def _handoff_tool(seat: TeamSeat) -> BaseTool:
    reachable = [*seat.others, *seat.policy.aliases, HUMAN]
    # Shown as an enum and judged by the seat: a stranger is refused with a typed result. What is
    # no metadata of the field is lost where LangChain copies the schema.
    shown = WithJsonSchema({"type": "string", "enum": list(dict.fromkeys(reachable))})
    about_target = "Who goes on; 'human' asks for a person."
    schema: Any = create_model(
        "HandoffConversation",
        __base__=_Wish,
        target=(Annotated[str, shown], Field(description=about_target)),
    )

    def hand_over(
        target: str,
        reason: str,
        summary: str,
        next_phase: str | None = None,
        channel_escalation: str = "same",
    ) -> Handoff:
        return Handoff(target, reason, summary, next_phase, channel_escalation)

    about = "Hand the conversation over to somebody else, who goes on at once."
    told = "; ".join(f"{name}: {text}" for name, text in seat.others.items() if text)
    return StructuredTool(
        name=HANDOFF_TOOL,
        description=f"{about} {told}".strip(),
        func=hand_over,
        args_schema=schema,
    )


class _Wish(BaseModel):
    target: str
    reason: str = Field(description="Why the conversation moves.")
    summary: str = Field(description="What the other needs to know of it so far.")
    next_phase: str | None = Field(None, description="The phase to enter, if not the usual one.")
    channel_escalation: Literal["same", "voice", "email", "sms"] = Field(
        "same", description="Another way to reach the human by."
    )


def _silence() -> BaseTool:
    def stay_silent() -> str:
        return ""

    return StructuredTool.from_function(
        stay_silent,
        name=SILENCE_TOOL,
        description="Let them go on; nothing is said.",
        return_direct=True,
    )
