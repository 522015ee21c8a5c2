"""Debate: all answer, read what the others say, and may change their answer."""

import re
from collections.abc import Sequence
from statistics import median

from langchain_core.messages import BaseMessage

from agentgraph import Agent
from agentgraph.flow import Flow, Summary, debate
from agentgraph.testing import ScriptedModel


def days_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) days", text)]


def estimator(name: str, first: int) -> Agent:
    """An estimator that moves to the middle of all answers, once it has read them."""

    def answer(messages: Sequence[BaseMessage]) -> str:
        answers = days_in(messages[-1].text)
        return f"{round(median(answers or [first]))} days"

    return Agent(name, "Estimates", model=ScriptedModel(answer), default_tools=False)


def are_near(summaries: Sequence[Summary]) -> bool:
    """End the debate as soon as the estimates are no more than a day apart."""
    days = [days_in(summary.text)[0] for summary in summaries]
    return max(days) - min(days) <= 1


flow: Flow[str] = Flow(
    "estimate",
    "Estimates work",
    work=[estimator("optimist", 3), estimator("realist", 6), estimator("pessimist", 20)],
    topology=debate(rounds=4, agree=are_near),
    aggregate=lambda summaries: f"{median(days_in(summary.text)[0] for summary in summaries)} days",
)


def main() -> None:
    result = flow.run("How long does the new roof take?")
    for report in result.stages:
        if report.worker:
            print(f"{report.worker}: {report.output['text']}")
    print(f"{result.status}: {result.text}")


if __name__ == "__main__":
    main()
