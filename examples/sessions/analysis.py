"""The pipeline "analysis": discuss, code, review and, once the reviewer agrees, report.

What it was about is kept in the session's context; each round's writes land with the round.
"""

from collections.abc import Callable, Sequence

from langchain_core.messages import BaseMessage

from agentgraph import Agent, Team, set_context
from agentgraph.phases import ConversationPipeline, PipelineStage
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted

pipeline = ConversationPipeline(
    stages=[
        PipelineStage(phase="analysis", agent_id="agent-discuss", next="coding"),
        PipelineStage(phase="coding", agent_id="agent-coder", next="review"),
        PipelineStage(
            phase="review",
            agent_id="agent-reviewer",
            next="report",
            can_return_to={"coding"},  # Reviewer can send back to coder
        ),
        PipelineStage(phase="report", agent_id="agent-writer", next=None),
    ],
    supervisor_id="agent-supervisor",
)


def note_requirement(text: str) -> str:
    """Note what the code has to do."""
    set_context("requirement", text)
    return "noted"


def run_tests(version: int) -> str:
    """Run the tests on a version of the code."""
    set_context("version", version)
    return "all pass" if version > 1 else "median([]) raises ZeroDivisionError"


def discuss(messages: Sequence[BaseMessage]) -> Scripted:
    if messages[-1].type == "tool":
        return "It has to hold for no numbers, too."
    return call("note_requirement", text="median of any list, None of an empty one")


def code(messages: Sequence[BaseMessage]) -> Scripted:
    last = messages[-1]
    if last.type == "tool":
        return f"median is written: {last.text}."
    return call("run_tests", version=2 if "handed over" in last.text else 1)


def review(messages: Sequence[BaseMessage]) -> Scripted:
    if "all pass" in messages[-1].text:
        return "Approved."
    return call(
        "handoff_conversation",
        target="agent-coder",
        reason="a test fails",
        summary="median([]) must be None.",
    )


def agent(name: str, about: str, model: ScriptedModel, *tools: Callable[..., str]) -> Agent:
    return Agent(name, about, model=model, system_prompt=f"You {about}.", tools=tools)


team = Team(
    [
        agent("agent-discuss", "analyse the task", ScriptedModel(discuss), note_requirement),
        agent("agent-coder", "write the code", ScriptedModel(code), run_tests),
        agent("agent-reviewer", "review the code", ScriptedModel(review)),
        agent("agent-writer", "write a report", ScriptedModel(lambda shown: "median is done.")),
        agent("agent-supervisor", "oversee", ScriptedModel(lambda shown: call("stay_silent"))),
    ],
    pipeline,
)


def main() -> None:
    result = team.run("We need a median.")
    for envelope in result.envelopes:
        if envelope.text:
            print(f"{envelope.sequence}. {envelope.sender_id}: {envelope.text}")
    print("phases:", *(one.to_phase for one in result.state.conversation.phase_history))
    print("context:", result.state.context_vars)
    print("closed:", result.close_reason)


if __name__ == "__main__":
    main()
