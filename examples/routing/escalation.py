"""Escalation: level by level, and to a human where no agent can resolve it."""

from agentgraph import FromSpeaker, HumanTarget, TerminateTarget, ToolCalled, Transition
from agentgraph.routing import Script, SimulatedTurn, TransitionGraph

PARTICIPANTS = ("first_level", "second_level")
ESCALATES, RESOLVES = ToolCalled("escalate"), ToolCalled("resolve")
graph = TransitionGraph(
    "first_level",
    [
        Transition(RESOLVES, TerminateTarget("resolved")),
        Transition(FromSpeaker("first_level") & ESCALATES, "second_level"),
        Transition(FromSpeaker("second_level") & ESCALATES, HumanTarget()),
        Transition(FromSpeaker("human"), "second_level"),
    ],
    HumanTarget(),
    max_turns=20,
)


def main() -> None:
    script: Script = {
        "first_level": [SimulatedTurn(text="This is beyond me.", tool="escalate")],
        "second_level": [
            SimulatedTurn(text="May I refund it?", tool="escalate"),
            SimulatedTurn(text="Refunded.", tool="resolve"),
        ],
        "user": ["Yes."],
    }
    print(graph.simulate(script, participants=PARTICIPANTS))


if __name__ == "__main__":
    main()
