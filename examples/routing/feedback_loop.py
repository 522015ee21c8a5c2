"""Feedback loop: one drafts and one reviews, until the review sets `approved`."""

from agentgraph.routing import Script, SimulatedTurn, feedback

PARTICIPANTS = ("drafter", "reviewer")
graph = feedback("drafter", "reviewer", done="approved")


def main() -> None:
    script: Script = {
        "drafter": ["A first draft.", "A better one."],
        "reviewer": ["Too long.", SimulatedTurn(text="Good.", set={"approved": True})],
    }
    print(graph.simulate(script, participants=PARTICIPANTS))


if __name__ == "__main__":
    main()
