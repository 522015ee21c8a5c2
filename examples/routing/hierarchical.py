"""Hierarchical: a coordinator delegates to specialists, who report back; the writer ends it."""

from agentgraph import AgentTarget, FromSpeaker, Handoff, TerminateTarget, Transition
from agentgraph.routing import Script, TransitionGraph

SPECIALISTS = ("analyst", "lawyer")
PARTICIPANTS = ("coordinator", *SPECIALISTS, "writer")
graph = TransitionGraph(
    "coordinator",
    [
        Transition(FromSpeaker("writer"), TerminateTarget("report_written")),
        *(Transition(FromSpeaker(name), "coordinator") for name in SPECIALISTS),
    ],
    AgentTarget("coordinator"),
    max_turns=20,
)


def main() -> None:
    script: Script = {
        "coordinator": [Handoff("analyst"), Handoff("lawyer"), Handoff("writer")],
        "analyst": ["Sales are up by a tenth."],
        "lawyer": ["The contract allows it."],
        "writer": ["Here is the report."],
    }
    print(graph.simulate(script, participants=PARTICIPANTS))


if __name__ == "__main__":
    main()
