"""Coordinator: one agent hands over to whom it likes; all others answer to it."""

from agentgraph import AgentTarget, Finish, Handoff, TransitionGraph
from agentgraph.routing import Script

PARTICIPANTS = ("coordinator", "coder", "tester")
graph = TransitionGraph("coordinator", [], AgentTarget("coordinator"), max_turns=30)


def main() -> None:
    script: Script = {
        "coordinator": [Handoff("coder"), Handoff("tester"), Handoff("coder"), Finish("Shipped.")],
        "coder": ["Written.", "Mended."],
        "tester": ["One test fails."],
    }
    print(graph.simulate(script, participants=PARTICIPANTS))


if __name__ == "__main__":
    main()
