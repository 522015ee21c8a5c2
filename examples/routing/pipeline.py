"""Pipeline: each step hands its work to the next, and the last one ends it."""

from agentgraph import sequence

STEPS = ("researcher", "writer", "editor")
graph = sequence(STEPS)


def main() -> None:
    said = ["Three sources, all of this year.", "A draft of two pages.", "Ready to print."]
    print(graph.simulate(said, participants=STEPS))


if __name__ == "__main__":
    main()
