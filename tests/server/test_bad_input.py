"""Bad input is answered with a problem that says what is wrong, and where."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest

from agentgraph.testing import ScriptedModel
from tests.server.live_server import problem_of, serving, solo

COMPLETION = "/agents/Solo/completion"
STREAM = "/agents/Solo/stream-completion"
RESUME = "/agents/Solo/resume"
THREAD = "/agents/Solo/threads/"
JSON = "application/json"
LIMIT = 1_048_576


class Bad(NamedTuple):
    """A request, and what is to be said of it."""

    method: str
    path: str
    body: bytes
    status: int
    code: str
    says: str
    pointers: tuple[str, ...] = ()
    kind: str = JSON


def said(**body: Any) -> bytes:
    return json.dumps(body).encode()


def bad(path: str, body: bytes, says: str, *pointers: str, kind: str = JSON) -> Bad:
    return Bad("POST", path, body, 422, "invalid_request", says, pointers, kind)


HI = said(prompt="hi")
TABLE = {
    "unknown path": Bad("GET", "/nowhere", b"", 404, "not_found", "/openapi.json"),
    "wrong method": Bad("GET", COMPLETION, b"", 405, "method_not_allowed", "/openapi.json"),
    "another wrong method": Bad("PATCH", "/health", b"{}", 405, "method_not_allowed", "method"),
    "unknown agent": Bad("GET", "/agents/Nobody", b"", 404, "unknown_agent", "there are Solo"),
    "prompt for an unknown agent": Bad(
        "POST", "/agents/Nobody/completion", HI, 404, "unknown_agent", "'Nobody'"
    ),
    "hostile agent": Bad("GET", "/agents/%ff%00%0d%0a", b"", 404, "unknown_agent", "Solo"),
    "no body": bad(COMPLETION, b"", "send a JSON object", "#"),
    "no object": bad(COMPLETION, b'"hi"', "send a JSON object", "#"),
    "null": bad(COMPLETION, b"null", "send a JSON object", "#"),
    "a list": bad(COMPLETION, b"[1]", "send a JSON object", "#"),
    "no JSON": bad(COMPLETION, b'{"prompt": hi}', "no JSON", "#"),
    "cut JSON": bad(COMPLETION, b'{"prompt": "h', "no JSON", "#"),
    "form": bad(COMPLETION, b"prompt=hi", "JSON", "#", kind="application/x-www-form-urlencoded"),
    "plain text": bad(COMPLETION, HI, "Content-Type: application/json", "#", kind="text/plain"),
    "no type": bad(COMPLETION, HI, "Content-Type: application/json", "#", kind=""),
    "not UTF-8": Bad("POST", COMPLETION, b'{"prompt": "\xff"}', 400, "bad_request", "JSON"),
    "deep": Bad("POST", COMPLETION, b"[" * 100_000, 400, "bad_request", "JSON"),
    "long number": Bad("POST", COMPLETION, b"1" * 10_000, 400, "bad_request", "JSON"),
    "blank prompt": bad(COMPLETION, said(prompt=" \n\t"), "blank", "#/prompt"),
    "empty prompt": bad(COMPLETION, said(prompt=""), "1 character", "#/prompt"),
    "long prompt": bad(COMPLETION, said(prompt="x" * 100_001), "100000", "#/prompt"),
    "prompt of another type": bad(COMPLETION, said(prompt=["hi"]), "string", "#/prompt"),
    "half a character": bad(COMPLETION, said(prompt="\ud800"), "unicode", "#/prompt"),
    "no prompt": bad(COMPLETION, b"{}", "required", "#/prompt"),
    "bad thread": bad(COMPLETION, said(prompt="hi", thread_id="a b"), "pattern", "#/thread_id"),
    "thread with a line break": bad(
        COMPLETION, said(prompt="hi", thread_id="a\n"), "pattern", "#/thread_id"
    ),
    "thread of dots": bad(COMPLETION, said(prompt="hi", thread_id=".."), "pattern", "#/thread_id"),
    "long thread": bad(COMPLETION, said(prompt="hi", thread_id="a" * 129), "128", "#/thread_id"),
    "empty thread": bad(COMPLETION, said(prompt="hi", thread_id=""), "1 character", "#/thread_id"),
    "unknown field": bad(COMPLETION, said(prompt="hi", user="me"), "no such field", "#/user"),
    "odd field": bad(COMPLETION, said(prompt="hi", **{"a/b~ c": 1}), "no such", "#/a~1b~0%20c"),
    "half a field": bad(COMPLETION, said(prompt="hi", **{"\ud800": 1}), "unicode", "#"),
    "all at once": bad(
        COMPLETION,
        said(thread_id="%", a=1, b=2),
        "required",
        *("#/prompt", "#/thread_id", "#/a", "#/b"),
    ),
    "stream without a prompt": bad(STREAM, b"{}", "required", "#/prompt"),
    "no decisions": bad(RESUME, said(thread_id="t", decisions={}), "at least 1", "#/decisions"),
    "decisions in a list": bad(RESUME, said(thread_id="t", decisions=[1]), "dict", "#/decisions"),
    "resume without a thread": bad(RESUME, said(decisions={"a": 1}), "required", "#/thread_id"),
    "bad thread to read": Bad(
        "GET", THREAD + "a%20b", b"", 422, "invalid_request", "pattern", ("path/thread_id",)
    ),
    "bad thread to delete": Bad(
        "DELETE", THREAD + "%00", b"", 422, "invalid_request", "pattern", ("path/thread_id",)
    ),
    "large body": Bad(
        "POST", COMPLETION, said(prompt="x" * LIMIT), 413, "too_large", "1,048,576 bytes"
    ),
}


@pytest.mark.parametrize("request_", TABLE.values(), ids=TABLE.keys())
async def test_bad_request_is_answered_with_what_is_wrong(request_: Bad) -> None:
    agent = solo("never")
    headers = {"Content-Type": request_.kind} if request_.kind else {}
    async with serving(agent, max_body=1_048_576) as client:
        answer = await client.request(
            request_.method, request_.path, content=request_.body, headers=headers
        )

    problem = problem_of(answer, request_.status)
    assert problem["code"] == request_.code
    assert request_.says in problem["detail"]
    assert [error["pointer"] for error in problem.get("errors", [])] == list(request_.pointers)
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests == []


async def test_body_in_pieces_is_measured_too() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100 * LIMIT // 65_536):
            yield b" " * 65_536

    async with serving(solo("hello")) as client:
        answer = await client.post(COMPLETION, content=pieces(), headers={"Content-Type": JSON})
        again = await client.post(COMPLETION, json={"prompt": "hi"})

    assert problem_of(answer, 413)["code"] == "too_large"
    assert again.status_code == 200


@pytest.mark.parametrize("kind", [JSON, "application/json; charset=utf-8", "application/x+json"])
async def test_kinds_of_json_are_read(kind: str) -> None:
    async with serving(solo("hello")) as client:
        answer = await client.post(COMPLETION, content=HI, headers={"Content-Type": kind})

    assert answer.status_code == 200


@pytest.mark.parametrize(
    "prompt", ["\x00", "a\x00b", "\u2028\x85\r\n\r\nevent: done", "🦜" * 50_000, "{{system}}"]
)
async def test_odd_prompt_reaches_the_model_as_it_is(prompt: str) -> None:
    agent = solo("hello")
    async with serving(agent) as client:
        answer = await client.post(COMPLETION, json={"prompt": prompt, "thread_id": "t"})
        thread = (await client.get(THREAD + "t")).json()

    assert answer.status_code == 200
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests[0].messages[-1].text == prompt
    assert thread["messages"][0]["text"] == prompt


@pytest.mark.parametrize("thread_id", ["a", "A.b_c~d:e@f+g=h|i-j", "a" * 128, "..a", "-"])
async def test_thread_of_any_allowed_name_is_found_again(thread_id: str) -> None:
    async with serving(solo("hello")) as client:
        answer = await client.post(COMPLETION, json={"prompt": "hi", "thread_id": thread_id})
        at = httpx.URL(client.base_url, raw_path=answer.headers["content-location"].encode())
        thread = await client.get(at)

    assert thread.json()["thread_id"] == thread_id
