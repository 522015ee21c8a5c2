"""Membership: the tools and the prompt by which a participant hands over to its peers."""

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
    """What a team gives to one participant: tools, a prompt, and the check of its handoffs."""

    name: str
    peer_descriptions: Mapping[str, str]
    """The names of the other participants, with a description of each."""
    policy: HandoffPolicy
    offers_handoff: bool
    is_supervisor: bool = False
    effects: MutableMapping[str, Effect] = field(default_factory=dict)
    """How the actions of all agents of the team are undone: each member adds its own."""

    is_alone: bool = field(default=False, init=False)

    @cached_property
    def peers(self) -> frozenset[str]:
        """The names that a `Handoff` of this participant may target."""
        return frozenset({*self.policy.participants, *self.policy.aliases, HUMAN})

    @cached_property
    def tools(self) -> Sequence[BaseTool]:
        """The tools that the participant gets in addition to its own."""
        handoff = [_handoff_tool(self)] if self.offers_handoff or self.is_supervisor else []
        return [*handoff, *([_silence_tool()] if self.is_supervisor else [])]

    @cached_property
    def prompt(self) -> str:
        """The text about the team for the participant's model."""
        peers = ", ".join(
            f"{name} ({about})" if about else name for name, about in self.peer_descriptions.items()
        )
        text = f"You are {self.name}. Others here: {peers or 'nobody'}."
        return f"{text} {_SUPERVISES if self.is_supervisor else _MARKS}"

    def refuse(self, guard: str, reason: str) -> Verdict:
        """Return the verdict for a handoff that a guard refuses."""
        code: HandoffCode = "hop_limit" if guard == "hop_limit" else "guard"
        return Verdict(to_json(asdict(HandoffResult(False, code, reason))).decode(), None)

    def judge(self, handoff: Handoff) -> Verdict:
        """Accept a handoff to a peer, or refuse it; the verdict's text is the tool's result.

        Raises `AgentGraphError` outside of a round: only a round knows who takes part.
        """
        round = current_round()
        if round is None:
            raise AgentGraphError("a handoff outside of a round", code="outside_round")
        state = round.state
        target_name = self.policy.aliases.get(handoff.target, handoff.target)
        human = target_name if target_name in state.humans else None
        request = HandoffRequest(
            # A human can be asked in any phase, also by their own name.
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
    """Return the tool that hands the conversation over to a target from its schema."""
    targets = [*member.peer_descriptions, *member.policy.aliases, HUMAN]
    # The model is shown an enum, but the tool accepts any string and `judge` checks it, so that a
    # wrong target is refused with a typed result. LangChain copies the schema and keeps only the
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
    """Return the tool by which a supervisor ends its turn without an answer."""

    def stay_silent() -> str:
        return ""

    # `return_direct`: otherwise the model would be asked once more, and answer something.
    return StructuredTool.from_function(
        stay_silent,
        name=SILENCE_TOOL,
        description="Let them go on; nothing is said.",
        return_direct=True,
    )
