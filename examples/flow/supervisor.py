"""Supervisor: it plans, two work, it judges. What it does not accept is planned anew.

The workers run on the offline model. A rule stands in for the supervisor's model, so this needs no
key; put "openai:gpt-5-mini" in its place.
"""

from collections.abc import Sequence

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from agentgraph import Agent
from agentgraph.flow import Flow
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted


class Page(BaseModel):
    """A page of a guide book."""

    title: str
    text: str


def search(subject: str) -> str:
    """Search the library for facts."""
    return "Tides follow the moon: two a day, as the almanac of 1901 says."


def measure(place: str) -> str:
    """Measure the water level at a place."""
    return "The water rises by four metres."


def lead(messages: Sequence[BaseMessage]) -> Scripted:
    """Answer as a supervisor would, by what the request asks for."""
    request = messages[-1].text
    if request.startswith("Plan"):
        briefs = [{"worker": "gauge", "task": "measure the water level"}]
        if "name a source" in request:  # the problem of the first attempt
            briefs.append({"worker": "librarian", "task": "search the library for facts"})
        return call("Plan", briefs=briefs)
    if "Judge" in request:
        problems = [] if "almanac" in request else ["name a source"]
        return call("Verdict", accepted=not problems, confidence=0.9, problems=problems)
    facts = [sentence for sentence in ("four metres", "almanac") if sentence in request]
    if "Give the final form" in request:
        return call("Page", title="Tides", text=" and ".join(facts))
    return f"On tides: {' and '.join(facts)}."


flow: Flow[Page] = Flow(
    "guide",
    "Writes pages of a guide book",
    supervisor=Agent("editor", model=ScriptedModel(lead), default_tools=False),
    work=[
        Agent("gauge", "Measures", model="offline", tools=[measure], default_tools=False),
        Agent("librarian", "Searches", model="offline", tools=[search], default_tools=False),
    ],
    outcome=Page,
    oracle=lambda page: "almanac" in page.text,
)


def main() -> None:
    result = flow.run("A page on tides")
    for report in result.stages:
        problems = [problem for verdict in report.verdicts for problem in verdict.problems]
        if report.output is not None or problems:
            print(report.attempt, report.stage, report.worker, report.output or problems)
    print(f"{result.status}, {result.replans} new plan: {result.outcome}")


if __name__ == "__main__":
    main()
