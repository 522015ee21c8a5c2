"""The probes of the contract: what was asked of a run, and what the ledger says of it.

"Not offered" means that the peer documents no mechanism for it. "Broken" means that its documented
mechanism was used, and that the sentence did not hold. The ledger decides, not what a peer says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.contract.processes import Broken, NotOfferedHere, World
from benchmarks.contract.scenario import STEPS, Outcome

__all__ = ["PROBES", "Finding", "Subject", "find"]

Verdict = Literal["held", "broken", "not offered"]

PROCESSES = 8
KILLS = ("draft:before", "charge:before", "charge:after", "report:after", "pay:before", "pay:after")


@dataclass(frozen=True)
class Finding:
    """What a probe found, and why in one sentence."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Subject:
    """A peer under probes."""

    new_world: Callable[[], World]
    effects: str = ""
    """The documented mechanism for an effect whose outcome is unknown; "" if there is none."""


def find(name: str, subject: Subject) -> Finding:
    """Put a property to the test."""
    try:
        return PROBES[name](subject)
    except NotOfferedHere as error:
        return Finding("not offered", str(error))
    except Broken as error:
        return Finding("broken", str(error))


def prefix_continuation(subject: Subject) -> Finding:
    world = subject.new_world()
    world.kill("begin", "report:before")
    outcome = world.play("resume")
    if repeated := _repeated(world, STEPS):
        return Finding("broken", f"killed in the third step, resumed: {repeated}")
    if outcome.status != "asks" or world.lines() != [*STEPS]:
        return Finding("broken", f"resumed to {outcome.status!r} with {world.lines()}")
    return Finding("held", "killed in the third step, the run went on with the third step")


def effect_once(subject: Subject) -> Finding:
    world = subject.new_world()
    world.kill("begin", "charge:after")
    told = world.told("resume")
    count = world.lines().count("charge")
    if "error" in told and count == 1:
        return Finding("held", f"the run is not taken up again, by an error: {told['error']}")
    if "error" in told:
        raise Broken(f"resume: {told['error']}")
    outcome = Outcome(**told["outcome"])
    if count == 1 and "charge" in str(outcome.state):
        return Finding("held", "the outcome was looked up, and the effect not repeated")
    if count == 1:
        return Finding("broken", "the effect is neither repeated nor told of")
    if subject.effects:
        return Finding("broken", f"the effect ran {count} times, with {subject.effects}")
    return Finding("not offered", f"the effect ran {count} times, and nobody was told")


def fork_determinism(subject: Subject) -> Finding:
    world = subject.new_world()
    world.play("begin")
    origin = world.play("state")
    forks = [world.play("fork", run=origin.name or "r") for _ in range(2)]
    if forks[0].state != forks[1].state or forks[0].state != origin.state:
        return Finding("broken", f"they begin as {[fork.state for fork in forks]}")
    if any(fork.status != "asks" for fork in forks):
        return Finding("broken", "a fork does not ask its question anew")
    first = world.play("answer", run=forks[0].name, value="yes")
    second = world.play("answer", run=forks[1].name, value="no")
    third = world.play("answer", run=origin.name or "r", value="no")
    answers = [outcome.answer for outcome in (first, second, third)]
    if answers != ["paid", "refused", "refused"] or world.lines() != [*STEPS, "pay"]:
        return Finding("broken", f"answers {answers}, done {world.lines()}")
    return Finding("held", "two forks and the run took three answers, and one payment was made")


def checkpoint_validity(subject: Subject) -> Finding:
    good_torn, torn = _torn(subject)
    try:
        good_misfit, misfit = _misfit(subject)
    except NotOfferedHere as error:
        return Finding("not offered" if good_torn else "broken", f"{error}; {torn}")
    return Finding("held" if good_misfit and good_torn else "broken", f"{misfit}; {torn}")


def _misfit(subject: Subject) -> tuple[bool, str]:
    """Have a step write a text where the schema has a number."""
    world = subject.new_world()
    told = world.told("begin", misfit=True)
    after = world.told("state")
    stored = "many" in str(after.get("outcome"))
    if "outcome" in told:
        return False, f"a misfit is {'stored' if stored else 'taken'} in silence"
    if "error" in after:
        return False, "a misfit is stored, and then the run can no longer be read"
    if stored:
        return False, "a misfit is stored, and refused only by the step that reads it"
    return True, "a misfit is refused"


def _torn(subject: Subject) -> tuple[bool, str]:
    """Cut the newest record in half while the run waits, and resume it."""
    world = subject.new_world()
    world.play("begin")
    before = world.lines()
    world.play("tear")
    told = world.told("resume")
    if told.get("hangs"):
        return False, "after a torn record the run waits for ever"
    if "error" in told:
        return True, f"a torn record is detected ({told['error'].split(':')[0]})"
    more = world.lines()[len(before) :]
    again = " ".join(more) or "nothing"
    return False, f"a torn record is passed over without an error, and {again} ran again"


def consume_once(subject: Subject) -> Finding:
    world = subject.new_world()
    world.play("begin")
    barrier = world.folder / "go"
    processes = [world.start("answer", value="yes", barrier=str(barrier)) for _ in range(PROCESSES)]
    try:
        for process in processes:
            process.wait_for("READY")
    finally:
        barrier.touch()  # nobody waits for ever, whatever came of the others
        told = [process.outcome() for process in processes]
    count = world.lines().count("pay")
    errors = [one["error"] for one in told if "error" in one]
    losers = f"{len(errors)} of {PROCESSES} heard an error"
    if count != 1:
        return Finding("broken", f"{PROCESSES} answers at once paid {count} times; {losers}")
    if late := _opposite_answer(subject):
        return Finding("broken", f"{PROCESSES} answers paid once, but {late}")
    sample = errors[0].split(":")[0] if errors else "no error"
    return Finding("held", f"{PROCESSES} answers at once paid once; {losers} ({sample})")


def _opposite_answer(subject: Subject) -> str:
    """Answer yes, kill after the payment, answer no; say what is wrong."""
    world = subject.new_world()
    world.play("begin")
    world.kill("answer", "pay:after", value="yes")
    told = world.told("answer", value="no")
    answer = told.get("outcome", {}).get("answer")
    if answer == "refused":
        return "after a kill in the payment an opposite answer is taken, of what was paid"
    return ""


def recovery_determinism(subject: Subject) -> Finding:
    world = subject.new_world()
    world.kill("begin", "report:before")
    worlds = [world.copy() for _ in range(3)]
    worlds[2].kill("resume", "report:before")
    ends = []
    for one in worlds:
        outcome = one.play("resume")
        ends.append((outcome.status, outcome.state, one.lines()))
    if ends[0] != ends[1]:
        return Finding("broken", f"two recoveries end as {_told(ends[0])} and {_told(ends[1])}")
    if ends[2] != ends[0]:
        reason = f"a recovery that was killed ends as {_told(ends[2])}, not as {_told(ends[0])}"
        return Finding("broken", reason)
    if ends[0][0] != "asks":
        return Finding("broken", f"the recovery ends as {ends[0][0]}")
    repeated = _repeated(worlds[0], STEPS)
    again = f" (equal, but {repeated})" if repeated else ""
    return Finding("held", f"three recoveries, one of them killed, ended equal{again}")


def _told(end: tuple[str, dict[str, Any], list[str]]) -> str:
    return f"{end[0]!r} after {' '.join(end[2])}"


def liveness(subject: Subject) -> Finding:
    stuck: dict[str, list[str]] = {}
    for point in KILLS:
        if why := _stuck(subject, point):
            stuck.setdefault(why, []).append(point)
    if stuck:
        reasons = (f"at {', '.join(points)} ({why})" for why, points in stuck.items())
        return Finding("broken", f"nobody can go on after a kill {'; '.join(reasons)}")
    return Finding("held", f"after a kill at each of {len(KILLS)} points the run came to its end")


def _stuck(subject: Subject, point: str) -> str:
    """Kill at a point; say why the run does not come to its end, "" if it does."""
    world = subject.new_world()
    try:
        if point.startswith("pay"):
            world.play("begin")
            world.kill("answer", point, value="yes")
        else:
            world.kill("begin", point)
        told = world.told("resume")
        outcome = told.get("outcome", {})
        if outcome.get("status") != "ended":
            # A run that waits takes the answer; one that cannot be resumed may take it still.
            answer = world.told("answer", value="yes")
            outcome = answer.get("outcome", {})
            told = answer if "error" in told else told
        ended = outcome.get("status") == "ended" and outcome.get("answer") == "paid"
        return "" if ended else str(told.get("error") or outcome or answer.get("error"))[:120]
    except Broken as error:
        return str(error)


def _repeated(world: World, names: Sequence[str]) -> str:
    """Say what ran more than once."""
    counts = {name: world.lines().count(name) for name in names}
    return ", ".join(f"{name} ran {count} times" for name, count in counts.items() if count > 1)


def as_document(finding: Finding) -> dict[str, Any]:
    return {"verdict": finding.verdict, "reason": finding.reason}


PROBES: dict[str, Callable[[Subject], Finding]] = {
    "prefix continuation": prefix_continuation,
    "effect once": effect_once,
    "fork determinism": fork_determinism,
    "checkpoint validity": checkpoint_validity,
    "consume once": consume_once,
    "recovery determinism": recovery_determinism,
    "liveness": liveness,
}
