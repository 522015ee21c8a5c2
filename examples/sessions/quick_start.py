"""Four agents in phases, a reviewer who may hand back, and a supervisor beside them.

A rule stands in for each model, so this needs no key; put "openai:gpt-5-mini" in its place.
"""

from collections.abc import Callable

from agentgraph import Agent, Team
from agentgraph.phases import ConversationPipeline, PipelineStage
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted

pipeline = ConversationPipeline(
    stages=[
        PipelineStage(phase="intake", agent_id="agent-triage", next="handling"),
        PipelineStage(phase="handling", agent_id="agent-handler", next="review"),
        PipelineStage(
            phase="review",
            agent_id="agent-reviewer",
            next="resolution",
            can_return_to={"handling"},
        ),
        PipelineStage(phase="resolution", agent_id="agent-resolver", next=None),
    ],
    supervisor_id="agent-supervisor",
)


def agent(name: str, prompt: str, answer: Callable[[str], Scripted]) -> Agent:
    """An agent whose model answers by what it was shown last."""
    model = ScriptedModel(lambda messages: answer(messages[-1].text))
    return Agent(name, prompt, model=model, system_prompt=prompt)


def handle(shown: str) -> str:
    if "does not know" in shown:  # the summary of whoever handed back
        return "The second charge is refunded, and the customer is told."
    return "The second charge is refunded."


def review(shown: str) -> Scripted:
    if "is told" in shown:
        return "Complete: refunded, and the customer knows."
    return call(
        "handoff_conversation",
        target="agent-handler",
        reason="incomplete",
        summary="The customer does not know of the refund yet.",
    )


team = Team(
    [
        agent("agent-triage", "You triage requests.", lambda shown: "A billing request."),
        agent("agent-handler", "You handle requests.", handle),
        agent("agent-reviewer", "You review what was done.", review),
        agent("agent-resolver", "You tell the customer.", lambda shown: "You have 20 back."),
        agent("agent-supervisor", "You oversee them.", lambda shown: call("stay_silent")),
    ],
    pipeline,
)


def main() -> None:
    result = team.run("I was charged twice, 20 each.")
    for envelope in result.envelopes:
        told = envelope.event_data
        match envelope.event_type:
            case "ag.phase":
                print(f"   {told['from']} → {told['to']}")
            case "ag.handoff":
                print(f"   {told['from']} hands over to {told['target']}: {told['reason']}")
            case _ if envelope.text:
                print(f"{envelope.sequence}. {envelope.sender_id}: {envelope.text}")
    print("closed:", result.close_reason)


if __name__ == "__main__":
    main()
