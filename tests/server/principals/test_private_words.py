"""What is said in private reaches nobody else by any route: words are marked, and looked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AnyMessage
from langgraph.types import interrupt

from agentgraph import Agent, FromSpeaker, HumanTarget, Team, Transition, TransitionGraph
from agentgraph.sessions import report_progress
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import serving
from tests.server.principals.test_access_matrix import RULES
from tests.server.principals.test_current_principal import by_header

PEOPLE = ("ann", "bob", "carl")
KINDS = ("say", "tool", "fail", "broken", "ask", "progress")
Kind = Literal["say", "tool", "fail", "broken", "ask", "progress"]


class Words(NamedTuple):
    """What somebody says, to whom, and what the agent does about it."""

    sender: str
    audience: tuple[str, ...] | None
    kind: Kind


SHOWN = [
    path
    for (method, path), rule in RULES.items()
    if method == "GET" and (rule.of in ("session", "run") or path in ("/sessions", "/decisions"))
]
"""The routes that show something of sessions."""

words = st.builds(
    Words,
    st.sampled_from(PEOPLE),
    st.none() | st.lists(st.sampled_from((*PEOPLE, "writer")), unique=True).map(tuple),
    st.sampled_from(KINDS),
)


def writer() -> Agent:
    """Make an agent that repeats the last marker it was told, in each way that there is."""

    def echo(marker: str) -> str:
        """Repeat."""
        return f"the tool says {marker}"

    def fail(marker: str) -> str:
        """Fail."""
        raise ValueError(f"the tool fails with {marker}")

    def ask(marker: str) -> str:
        """Ask a human."""
        return f"decided {interrupt({'about': marker})} on {marker}"

    def progress(marker: str) -> str:
        """Report."""
        report_progress(f"working on {marker}")
        return f"worked on {marker}"

    def answer(messages: Sequence[AnyMessage]) -> object:
        last = messages[-1]
        heard = re.findall(r"(\w+) (marker-\d+-)", str(messages))
        if not heard:
            return "I heard nothing"
        kind, marker = heard[-1]
        if kind == "broken" and last.type == "human":
            raise ValueError(f"the model fails with {marker}")
        if last.type == "human" and kind != "say":
            name = {"tool": "echo"}.get(kind, kind)
            return call(name, marker=f"{kind} {marker}")
        return f"I heard {marker}"

    model = ScriptedModel(answer)  # type: ignore[arg-type]
    return Agent("writer", model=model, tools=[echo, fail, ask, progress], guards=None)


def desk() -> Team:
    rules = TransitionGraph("writer", [Transition(~FromSpeaker("writer"), "writer")], HumanTarget())
    return Team([writer()], rules, name="desk", humans=PEOPLE[1:])


@dataclass
class Conversation:
    """A session in which words are said, and who may know which."""

    client: httpx.AsyncClient
    id: str
    known: dict[str, set[str]] = field(default_factory=dict)
    """By marker, who may know it."""
    accepted: list[str] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)

    async def say(self, said: Words) -> None:
        """Say a marked word, and decide what is asked about it."""
        marker = f"marker-{len(self.known)}-"
        may_know = {*PEOPLE} if said.audience is None else {said.sender, *said.audience}
        self.known[marker] = may_know
        body: dict[str, Any] = {
            "text": f"please {said.kind} {marker}",
            "metadata": {"note": marker},
            "idempotency_key": f"key {marker}",
        }
        if said.audience is not None:
            body["audience"] = [*said.audience]
        if await self._begin(said.sender, f"/sessions/{self.id}/messages", body):
            self.accepted.append(marker)
        for question in await self._questions_of(said.sender):
            path = f"/sessions/{self.id}/decisions/{question}"
            await self._check_others(path, may_know)
            await self._begin(said.sender, path, {"decision": f"yes {marker}"})

    async def _begin(self, sender: str, path: str, body: Any) -> bool:
        """Begin a run, and wait for its end; tell whether it was accepted."""
        headers = {"x-user": sender, "Prefer": "wait"}
        answer = await self.client.post(path, json=body, headers=headers)
        if answer.status_code == 200:
            return True
        code = answer.json()["code"]
        assert code in ("session_closed", "round_failed", "model", "output", "silent"), answer.text
        return bool(code != "session_closed")

    async def _questions_of(self, name: str) -> list[str]:
        path = f"/sessions/{self.id}/decisions"
        answer = await self.client.get(path, headers={"x-user": name})
        return [one["interrupt_id"] for one in answer.json()]

    async def _check_others(self, path: str, may_know: set[str]) -> None:
        """Check that a private question is nobody else's to decide, and that no answer tells it."""
        for name in {*PEOPLE} - may_know:
            body = {"decision": "no"}
            answer = await self.client.post(path, json=body, headers={"x-user": name})
            assert answer.status_code == 404, answer.text
            self.check(name, path, answer.text)

    def check(self, name: str, path: str, text: str) -> None:
        """Check that what somebody is shown has nothing that it may not know."""
        for marker, may_know in self.known.items():
            assert name in may_know or marker not in text, f"{name} is shown {marker} by {path}"

    async def read_all(self) -> None:
        """Read each route that shows something, as each of the people."""
        headers = {"x-user": "root", "x-scopes": "read,operate"}
        path = f"/sessions/{self.id}"
        sequence = (await self.client.get(path, headers=headers)).json()["sequence"]
        runs = (await self.client.get(f"{path}/runs?limit=100", headers=headers)).json()
        self.run_ids = [run["id"] for run in runs]
        addresses = [it for path in SHOWN for it in self._addresses(path, sequence)]
        for name in PEOPLE:
            answers = await asyncio.gather(*(self._get(name, it) for it in addresses))
            for address, answer in zip(addresses, answers, strict=True):
                self.check(name, address, answer.text)

    def _addresses(self, path: str, sequence: int) -> list[str]:
        if "{run_id}" in path:
            return [path.format(run_id=run_id) for run_id in self.run_ids]
        if "{sequence}" in path:
            return [path.format(id=self.id, sequence=n) for n in range(1, sequence + 1)]
        query = "?live=false" if path.endswith("/events") else ""
        return [path.format(id=self.id, name="desk") + query]

    async def _get(self, name: str, path: str) -> httpx.Response:
        return await self.client.get(path, headers={"x-user": name})

    async def follow(self, name: str) -> str:
        """Return all events that somebody is shown until the session ends."""
        headers, path = {"x-user": name}, f"/sessions/{self.id}/events"
        async with self.client.stream("GET", path, headers=headers) as answer:
            return (await answer.aread()).decode()


async def converse(said: Sequence[Words]) -> None:
    async with serving(desk(), auth=by_header) as client:
        owner = {"x-user": "ann"}
        body = {"served": "desk"}
        id = (await client.post("/sessions", json=body, headers=owner)).json()["id"]
        for name in PEOPLE[1:]:
            await client.post(f"/sessions/{id}/join", headers={"x-user": name})
        talk = Conversation(client, id)
        followers = {name: asyncio.create_task(talk.follow(name)) for name in PEOPLE}
        for one in said:
            await talk.say(one)
        await talk.read_all()
        await client.post(f"/sessions/{id}/close", headers=owner)
        for name, follower in followers.items():
            events = await follower
            talk.check(name, "the live events", events)
            assert "ag.session.closed" in events
        shown = (await client.get(f"/sessions/{id}/log", headers=owner)).text
        for marker in talk.accepted:
            assert ("ann" in talk.known[marker]) == (marker in shown), marker


@pytest.mark.parametrize("kind", KINDS)
async def test_what_answers_private_words_is_private_by_every_route(kind: Kind) -> None:
    await converse(
        [
            Words("bob", ("writer",), kind),
            Words("ann", None, "say"),
            Words("bob", ("carl", "writer"), kind),
            Words("carl", ("bob",), kind),
        ]
    )


@given(st.lists(words, min_size=1, max_size=4))
@example([Words("ann", (), "ask"), Words("bob", None, "ask"), Words("carl", ("ann",), "tool")])
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_audiences_are_kept_by_every_route(said: list[Words]) -> None:
    asyncio.run(converse(said))
