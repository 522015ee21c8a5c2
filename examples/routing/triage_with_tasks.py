"""Triage with tasks: a plan is a list of tasks, and the next task's kind picks who does it."""

from agentgraph import ContextEquals, FromSpeaker, TerminateTarget, Transition, TransitionGraph
from agentgraph.routing import Script, SimulatedTurn

WORKERS = {"research": "researcher", "write": "writer"}
PARTICIPANTS = ("triage", "manager", *WORKERS.values())
MANAGES = FromSpeaker("manager")
graph = TransitionGraph(
    "triage",
    [
        Transition(FromSpeaker("triage"), "manager"),
        *(Transition(MANAGES & ContextEquals("task", kind), who) for kind, who in WORKERS.items()),
        *(Transition(FromSpeaker(who), "manager") for who in WORKERS.values()),
    ],
    TerminateTarget("all_tasks_done"),
    max_turns=30,
)


def main() -> None:
    tasks = [SimulatedTurn(set={"task": kind}) for kind in ("research", "research", "write")]
    script: Script = {
        "triage": ["Two things to look up, one to write."],
        "manager": [*tasks, SimulatedTurn(text="All done.", delete=["task"])],
        "researcher": ["Found one.", "Found the other."],
        "writer": ["Written."],
    }
    print(graph.simulate(script, participants=PARTICIPANTS))


if __name__ == "__main__":
    main()
