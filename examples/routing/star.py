"""Star: a hub asks its spokes one by one, and ends it with what they answered."""

from agentgraph import Finish
from agentgraph.routing import Script, SimulatedTurn, star

SPOKES = ("weather", "traffic")
PARTICIPANTS = ("planner", *SPOKES)
graph = star("planner", SPOKES)


def main() -> None:
    script: Script = {
        "planner": [
            SimulatedTurn(tool="ask_weather"),
            SimulatedTurn(tool="ask_traffic"),
            Finish("Go by train.", "planned"),
        ],
        "weather": ["Snow from noon."],
        "traffic": ["The motorway is closed."],
    }
    print(graph.simulate(script, participants=PARTICIPANTS))


if __name__ == "__main__":
    main()
