"""Redundant: several propose at once, an evaluator picks."""

from agentgraph import FromSpeaker, ParallelTarget, TerminateTarget, Transition, TransitionGraph
from agentgraph.routing import Script

PROPOSERS = ("cautious", "bold")
PARTICIPANTS = ("moderator", *PROPOSERS, "evaluator")
graph = TransitionGraph(
    "moderator",
    [
        Transition(FromSpeaker("moderator"), ParallelTarget(PROPOSERS, join="evaluator")),
        Transition(FromSpeaker("evaluator"), TerminateTarget("chosen")),
    ],
)


def main() -> None:
    script: Script = {
        "moderator": ["How do we store it?"],
        "cautious": ["In a file."],
        "bold": ["In a cluster."],
        "evaluator": ["A file it is."],
    }
    print(graph.simulate(script, participants=PARTICIPANTS))


if __name__ == "__main__":
    main()
