"""Context-aware routing: a router says what it is about, its value picks the specialist."""

from agentgraph import ContextEquals, FromSpeaker, HumanTarget, TerminateTarget, Transition
from agentgraph.routing import Script, SimulatedTurn, TransitionGraph

TOPICS = {"money": "billing", "login": "security"}
PARTICIPANTS = ("router", *TOPICS.values())
graph = TransitionGraph(
    "router",
    [
        # First, because the topic stays set: else it would bring the floor back for ever.
        *(Transition(FromSpeaker(name), TerminateTarget("answered")) for name in TOPICS.values()),
        *(Transition(ContextEquals("topic", topic), name) for topic, name in TOPICS.items()),
        Transition(FromSpeaker("router"), HumanTarget()),
        Transition(FromSpeaker("human"), "router"),
    ],
)


def main() -> None:
    script: Script = {
        "router": ["What is it about?", SimulatedTurn(set={"topic": "login"})],
        "user": ["I cannot get in."],
        "security": ["Here is a new password."],
    }
    print(graph.simulate(script, participants=PARTICIPANTS))


if __name__ == "__main__":
    main()
