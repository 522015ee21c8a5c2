"""Parallel reviewers: two read a draft at the same time, and once both have, the editor speaks."""

from agentgraph import (
    Agent,
    FromSpeaker,
    ParallelTarget,
    Team,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.testing import ScriptedModel

rules = TransitionGraph(
    "author",
    [
        Transition(FromSpeaker("author"), ParallelTarget(("lawyer", "stylist"), join="editor")),
        Transition(FromSpeaker("editor"), TerminateTarget("edited")),
    ],
)


def edit(shown: str) -> str:
    return (
        "Both have read it: printed." if "[lawyer]" in shown and "[stylist]" in shown else "Wait."
    )


team = Team(
    [
        Agent("author", "Writes", model=ScriptedModel(lambda shown: "A draft.")),
        Agent("lawyer", "Reads for law", model=ScriptedModel(lambda shown: "Nobody can sue.")),
        Agent("stylist", "Reads for style", model=ScriptedModel(lambda shown: "Too many commas.")),
        Agent("editor", "Decides", model=ScriptedModel(lambda shown: edit(shown[-1].text))),
    ],
    rules,
)


def main() -> None:
    result = team.run("A page on tidal power, please.")
    for envelope in result.envelopes:
        if envelope.text:
            print(f"{envelope.sequence}. {envelope.sender_id}: {envelope.text}")
    print("closed:", result.close_reason)


if __name__ == "__main__":
    main()
