"""Membership: what a participant has in its team, to know the others and hand over to them."""

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
from agentgraph.sessions.rounds.round import current_round

HUMAN = "human"


@dataclass(frozen=True)
class Membership:
    """What one participant is given in a team: tools, a prompt, and the check of its handoffs."""

    name: str
    peer_descriptions: Mapping[str, str]
    """The names of the other participants, and what each is good for."""
    policy: HandoffPolicy
    offers_handoff: bool
    is_supervisor: bool = False
    effects: MutableMapping[str, Effect] = field(default_factory=dict)
    """How the actions of all in the team are undone: each member adds its own."""

    @cached_property
    def peers(self) -> frozenset[str]:
        """The names to which a `Handoff` of this participant may lead."""
        return frozenset({*self.policy.participants, *self.policy.aliases, HUMAN})

    @cached_property
    def tools(self) -> Sequence[BaseTool]:
        """The tools that members have beside their own."""
        handoff = [_handoff_tool(self)] if self.offers_handoff or self.is_supervisor else []
        return [*handoff, *([_silence_tool()] if self.is_supervisor else [])]

    @cached_property
    def prompt(self) -> str:
        """What the participant's model must know of the team."""
        peers = ", ".join(
            f"{name} ({about})" if about else name for name, about in self.peer_descriptions.items()
        )
        text = f"You are {self.name}. Others here: {peers or 'nobody'}."
        return f"{text} {_SUPERVISES if self.is_supervisor else _MARKS}"

    def refuse(self, guard: str, reason: str) -> Verdict:
        """Refuse a handoff that a guard does not let through."""
        code: HandoffCode = "hop_limit" if guard == "hop_limit" else "guard"
        return Verdict(to_json(asdict(HandoffResult(False, code, reason))).decode(), None)

    def judge(self, handoff: Handoff) -> Verdict:
        """Accept a handoff to a peer, or say why not; the verdict's text is the tool's result.

        Raises `AgentGraphError` outside of a round: only there it is known who takes part.
        """
        round = current_round()
        if round is None:
            raise AgentGraphError("a handoff outside of a round", code="outside_round")
        state = round.state
        target_name = self.policy.aliases.get(handoff.target, handoff.target)
        human = target_name if target_name in state.humans else None
        request = HandoffRequest(
            # Whoever is human can be asked in any phase, by their own name too.
            HUMAN if human is not None else handoff.target,
            handoff.reason,
            handoff.summary,
            handoff.next_phase,
            handoff.channel_escalation,  # type: ignore[arg-type]  # checked there
        )
        policy = round.policy(self.policy)
        # The guards count hops, over all levels: the state has none of this round's.
        result = validate_handoff(request, policy, caller=self.name, phase=state.phase)
        text = to_json(asdict(result)).decode()
        if not result.accepted:
            return Verdict(text, None)
        target = result.new_agent_id or human or HUMAN
        accepted_handoff = Handoff(
            target, handoff.reason, handoff.summary, result.new_phase, handoff.channel_escalation
        )
        return Verdict(text, accepted_handoff, is_hop=result.new_agent_id is not None)


_MARKS = "What they say begins with [their name]; answer without such a mark."
_SUPERVISES = (
    "You see all that they say, and what each says begins with [their name]. Call `stay_silent` "
    "unless you must intervene: what you say is said to all of them."
)


def _handoff_tool(member: Membership) -> BaseTool:
    """Return the tool that hands the conversation over to one of the targets in its schema."""
    targets = [*member.peer_descriptions, *member.policy.aliases, HUMAN]
    # The model is shown an enum, but any string is taken and checked by `judge`, so that a wrong
    # target is refused with a typed result. LangChain copies the schema and loses what is no
    # metadata of a field.
    target_schema = WithJsonSchema({"type": "string", "enum": list(dict.fromkeys(targets))})
    about_target = "Who goes on; 'human' asks for a person."
    schema: Any = create_model(
        "HandoffConversation",
        __base__=_HandoffArguments,
        target=(Annotated[str, target_schema], Field(description=about_target)),
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
    peers = "; ".join(f"{name}: {text}" for name, text in member.peer_descriptions.items() if text)
    return StructuredTool(
        name=HANDOFF_TOOL,
        description=f"{about} {peers}".strip(),
        func=hand_over,
        args_schema=schema,
    )


class _HandoffArguments(BaseModel):
    target: str
    reason: str = Field(description="Why the conversation moves.")
    summary: str = Field(description="What the other needs to know of it so far.")
    next_phase: str | None = Field(None, description="The phase to enter, if not the usual one.")
    channel_escalation: Literal["same", "voice", "email", "sms"] = Field(
        "same", description="Another way to reach the human by."
    )


def _silence_tool() -> BaseTool:
    """Return the tool by which a supervisor ends its turn without a word."""

    def stay_silent() -> str:
        return ""

    # It returns directly: the model would be asked for words once more, and find some.
    return StructuredTool.from_function(
        stay_silent,
        name=SILENCE_TOOL,
        description="Let them go on; nothing is said.",
        return_direct=True,
    )
