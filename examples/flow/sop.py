"""Standard procedure: each step builds on those before, a gate is between every two.

Where a gate does not let pass what a step has made, the flow ends, and what was done is undone.
"""

from typing import Any

from agentgraph import Agent, effect
from agentgraph.flow import Brief, Flow, Stage, Summary
from agentgraph.guards import Gate, Guards, Subject
from agentgraph.testing import ScriptedModel, call

booked_seats: list[str] = []


def cancel_seat(seat: str) -> None:
    """Cancel the booking of a seat."""
    booked_seats.remove(seat)


@effect(compensate=cancel_seat)
def book_seat(seat: str) -> str:
    """Book a seat."""
    booked_seats.append(seat)
    return f"booked {seat}"


def read_form(brief: Brief) -> Summary:
    """Read the customer's form: a step that needs no model."""
    name, _, card = brief.task.partition(", card ")
    return Summary(worker="read_form", text=f"{name} wants a seat", artifacts={"card": card})


def is_charged(subject: Subject) -> bool | str:
    return "charged" in subject.text or "the card was not charged"


def clerk(name: str, *turns: Any, **fields: Any) -> Agent:
    return Agent(name, model=ScriptedModel([*turns]), default_tools=False, **fields)


def booking(payment: str) -> Flow[str]:
    """The procedure, whose last step says this of the payment."""
    reserve = clerk("reserve", call("book_seat", seat="12A"), "Seat 12A.", tools=[book_seat])
    return Flow(
        "booking",
        "Books seats",
        work=[read_form, reserve, clerk("charge", payment)],
        topology="sop",
        stages={
            "reserve": Stage(requires=("card",)),  # an artifact of the step before
            "charge": Stage(after=Gate(invariants=[is_charged])),
        },
        guards=Guards.batch(replans=0),
    )


def main() -> None:
    for payment in ("The card is charged.", "The card is refused."):
        result = booking(payment).run("Ann, card 4111")
        steps = [report.worker for report in result.stages if report.worker]
        print(" → ".join(steps), "|", result.status, "|", result.text.replace("\n", " "))
        print("seats booked:", booked_seats)
        booked_seats.clear()


if __name__ == "__main__":
    main()
