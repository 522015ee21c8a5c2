"""Handoff: peers pass the one brief on, until one of them answers."""

from agentgraph import Agent
from agentgraph.flow import Brief, Flow, Plan
from agentgraph.guards import Guards
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted


def peer(name: str, description: str, answer: Scripted) -> Agent:
    """A peer: its model calls the tool `transfer_to_…` of another one, or answers."""
    model = ScriptedModel(lambda messages: answer)
    return Agent(name, description, model=model, default_tools=False)


def desk(last_answer: Scripted) -> Flow[str]:
    """A desk whose last peer answers so, or hands over once more."""
    return Flow(
        "desk",
        "Answers customers",
        work=[
            peer("reception", "Receives", call("transfer_to_billing", reason="it is a bill")),
            peer("billing", "Knows bills", call("transfer_to_refunds", reason="charged twice")),
            peer("refunds", "Pays back", last_answer),
        ],
        plan=lambda task: Plan(briefs=(Brief(worker="reception", task=task),)),
        topology="handoff",
        guards=Guards.batch(hops=5),
    )


flow = desk("You have 20 back.")
endless = desk(call("transfer_to_reception", reason="not mine"))


def main() -> None:
    for each in (flow, endless):
        result = each.run("I was charged twice")
        print(" → ".join(report.worker for report in result.stages if report.worker))
        print(f"{result.status}: {result.text}")


if __name__ == "__main__":
    main()
