"""Hierarchical: the workers have workers of their own, and depth and budget count over all."""

from collections.abc import Callable

from agentgraph import Agent
from agentgraph.flow import Brief, Flow, Plan
from agentgraph.testing import ScriptedModel, call


def count_rooms(house: str) -> str:
    """Count the rooms of a house."""
    return "nine rooms"


def find_damage(house: str) -> str:
    """Find the damage of a house."""
    return "a leaking roof"


def surveyor(name: str, tool: Callable[[str], str]) -> Agent:
    return Agent(name, model="offline", tools=[tool], default_tools=False)


inspection: Flow[str] = Flow(
    "inspection",
    "Inspects a house",
    work=[surveyor("counter", count_rooms), surveyor("examiner", find_damage)],
    plan=lambda task: Plan(
        briefs=(
            Brief(worker="counter", task=f"count the rooms of {task}"),
            Brief(worker="examiner", task=f"find the damage of {task}"),
        )
    ),
)
actuary = Agent(
    "actuary",
    "Knows what a repair costs",
    model=ScriptedModel(lambda messages: "A repair costs 9,000."),
    default_tools=False,
)
broker = Agent(
    "broker",
    "Values a house",
    model=ScriptedModel(lambda messages: call("transfer_to_actuary", reason="it is damaged")),
    agents=[actuary],
    default_tools=False,
)
flow: Flow[str] = Flow(
    "valuation",
    "Values houses",
    work=[inspection, broker],
    topology="hierarchical",
)


def main() -> None:
    result = flow.run("the house at the harbour")
    for report in result.stages:
        if report.worker:
            print(f"{report.worker}: {report.output['text']!r}")
    print(f"{result.status}, and these models were paid:", *result.usage.by_agent, sep="\n  ")


if __name__ == "__main__":
    main()
