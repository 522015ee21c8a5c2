"""The id of a request, and what the log says of one that fails."""

from __future__ import annotations

import json
import logging

import pytest

from agentgraph.remote import Principal
from agentgraph_server.logs import JsonFormatter, TextFormatter
from tests.server.live_server import problem_of, serving, solo


@pytest.mark.parametrize("given", ["a-b_c.1", "00-4bf92f3577b34da6a3ce929d0e0e4736-01", "x" * 128])
async def test_sane_id_of_a_request_is_its_own(given: str) -> None:
    async with serving(solo(), api_keys=["one"]) as client:
        answer = await client.get("/health", headers={"X-Request-ID": given})
        refused = await client.get("/agents", headers={"X-Request-ID": given})

    assert [response.headers["x-request-id"] for response in (answer, refused)] == [given] * 2


@pytest.mark.parametrize("given", ["", "a b", "é", "x" * 129, "a\tb", '"><script>'])
async def test_any_other_request_gets_an_id(given: str) -> None:
    async with serving(solo()) as client:
        headers = [(b"x-request-id", given.encode())]
        answers = [await client.get("/health", headers=headers) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]

    assert ids[0] != ids[1]
    assert all(len(id) == 32 and id.isalnum() for id in ids)


class Broken(Principal):
    """A principal whose scopes fail."""

    @property
    def operates(self) -> bool:
        raise ZeroDivisionError("postgresql://admin:pass-word-9@db/agents")


async def test_unexpected_failure_is_logged_with_request_session_and_principal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(solo(), auth=lambda request: Broken("ann", tenant="acme")) as client:
        failed = await client.get("/sessions", headers={"X-Request-ID": "r-1"})

    assert problem_of(failed, 500)["code"] == "error"
    assert failed.headers["x-request-id"] == "r-1"
    assert "admin" not in failed.text
    (record,) = [record for record in caplog.records if record.name == "agentgraph_server"]
    assert record.exc_info and record.exc_info[0] is ZeroDivisionError
    assert (record.request, record.principal) == ("r-1", "acme/ann")  # type: ignore[attr-defined]
    for formatter in (JsonFormatter(), TextFormatter()):
        text = formatter.format(record)
        assert "pass-word-9" not in text
        assert "ZeroDivisionError" in text
        assert "acme/ann" in text
    line = json.loads(JsonFormatter().format(record))
    assert line["level"] == "error"
    assert line["request"] == "r-1"
    assert not any("Exception in ASGI" in record.getMessage() for record in caplog.records)


async def test_store_that_is_lost_is_logged_with_the_session(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentgraph.errors import StorageError
    from agentgraph.sessions.hub.hub import Hub

    async def lost(*_: object, **__: object) -> None:
        raise StorageError("the store cannot be reached")

    async with serving(solo()) as client:
        monkeypatch.setattr(Hub, "get", lost)
        failed = await client.get("/sessions/s-1/state", headers={"X-Request-ID": "r-2"})

    assert problem_of(failed, 503)["code"] == "storage"
    (record,) = [r for r in caplog.records if r.name == "agentgraph_server"]
    assert record.levelno == logging.ERROR
    fields = [getattr(record, name) for name in ("request", "session", "principal")]
    assert fields == ["r-2", "s-1", "default/user"]
