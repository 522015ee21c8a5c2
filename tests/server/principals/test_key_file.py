"""Keys in a file: known by their hashes, with an end, and refused as soon as they are revoked."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.requests import Request

from agentgraph.errors import ConfigurationError
from agentgraph.remote import Principal
from agentgraph.testing import FakeClock
from agentgraph_server.principals.auth import Unauthorized
from agentgraph_server.principals.key_file import KeyFile, key_file_auth
from agentgraph_server.server import make_server
from agentgraph_server.settings import Settings
from tests.server.live_server import problem_of, serving, solo

ADD = """
import sys
from agentgraph_server.principals.key_file import KeyFile
for n in range(20):
    KeyFile(sys.argv[1]).add(f"{sys.argv[2]}-{n}")
"""


def request_with(key: str) -> Request:
    return Request({"type": "http", "headers": [(b"x-api-key", key.encode("latin-1"))]})


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def test_a_key_stands_for_its_principal(file: KeyFile) -> None:
    key = file.add("bot", tenant="acme", scopes=["read", "operate"], participant="ann")
    auth = key_file_auth(file.path)

    expected = Principal("bot", "acme", frozenset({"read", "operate"}), "ann")
    assert auth(request_with(key)) == expected
    for wrong in ("", key[:-1], key + "x", key.upper(), "schlüssel", file.read()[0].digest):
        assert auth(request_with(wrong)) is None


def test_the_file_has_no_keys_and_is_its_owners_alone(file: KeyFile) -> None:
    keys = [file.add("ann"), file.add("ann")]
    text = file.path.read_text()

    assert len(set(keys)) == 2
    assert not any(key in text or key[4:] in text for key in keys)
    assert all(len(key) >= 40 for key in keys)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in file.path.parent.iterdir() if path.suffix != ".lock"] == [
        "keys.json"
    ]


def test_a_key_ends(file: KeyFile) -> None:
    with FakeClock().installed() as clock:
        key = file.add("ann", expires_in_s=90 * 86_400)
        auth = key_file_auth(file.path)
        clock.advance(90 * 86_400 - 1)
        assert auth(request_with(key)) is not None
        clock.advance(1)
        with pytest.raises(Unauthorized, match="expired"):
            auth(request_with(key))


def test_a_revoked_key_is_refused_without_a_restart(file: KeyFile) -> None:
    first, second, other = file.add("ann"), file.add("ann"), file.add("bob")
    auth = key_file_auth(file.path)
    assert all(auth(request_with(key)) for key in (first, second, other))

    by_id = file.revoke(file.read()[0].id)
    assert [key.name for key in by_id] == ["ann"]
    assert auth(request_with(first)) is None and auth(request_with(second)) is not None
    assert len(file.revoke("ann")) == 1
    assert auth(request_with(second)) is None and auth(request_with(other)) is not None
    added = file.add("carl")
    assert auth(request_with(added)) is not None
    assert file.revoke("nobody") == []


def test_a_name_of_another_tenant_keeps_its_key(file: KeyFile) -> None:
    file.add("ann", tenant="acme")
    file.add("ann", tenant="other")

    assert [key.tenant for key in file.revoke("ann", tenant="acme")] == ["acme"]
    assert [key.tenant for key in file.read()] == ["other"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2, "keys": []}', '{"version": 1, "keys": [{}]}']
)
def test_a_file_that_is_broken_lets_nobody_in(file: KeyFile, text: str) -> None:
    key = file.add("ann")
    auth = key_file_auth(file.path)
    file.path.write_text(text)

    with pytest.raises(ConfigurationError, match="is no file of keys"):
        auth(request_with(key))
    assert auth(request_with(key)) is None
    with pytest.raises(ConfigurationError, match="is no file of keys"):
        file.add("bob")
    assert file.path.read_text() == text


def test_a_server_without_its_file_does_not_start(file: KeyFile) -> None:
    with pytest.raises(ConfigurationError, match="agentgraph keys add"):
        key_file_auth(file.path)
    key = file.add("ann")
    auth = key_file_auth(file.path)
    file.path.unlink()
    assert auth(request_with(key)) is None


def test_what_no_principal_can_have_is_refused_with_every_fault(file: KeyFile) -> None:
    with pytest.raises(ConfigurationError) as refused:
        file.add("a b", tenant="t/u", scopes=["fly"])
    assert len(refused.value.faults) == 3
    with pytest.raises(ConfigurationError, match="may do nothing"):
        file.add("ann", scopes=[])
    with pytest.raises(ConfigurationError, match="means whoever is no agent"):
        file.add("Human")
    file.add("ann@example.com", participant="ann")


def test_two_writers_lose_no_key(file: KeyFile) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", ADD, str(file.path), name],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for name in ("one", "two")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len({key.name for key in file.read()}) == 40


async def test_a_server_reads_the_file_of_its_settings(file: KeyFile) -> None:
    key, other = file.add("ann"), file.add("bob")
    async with serving(solo(), keys_file=str(file.path), api_keys=["plain"]) as client:
        for good in (key, "plain"):
            headers = {"Authorization": f"Bearer {good}"}
            assert (await client.get("/served", headers=headers)).status_code == 200
        await asyncio.to_thread(file.revoke, "ann")
        answers = [await client.get("/served", headers={"X-API-Key": k}) for k in (key, other)]
        problem_of(answers[0], 401)
        assert answers[1].status_code == 200


async def test_a_broken_file_is_told_to_the_log_and_not_to_clients(
    file: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    key = file.add("ann")
    async with serving(solo(), keys_file=str(file.path)) as client:
        file.path.write_text(json.dumps({"version": 1, "keys": ["torn-by-hand"]}))
        problem = problem_of(await client.get("/served", headers={"X-API-Key": key}), 500)
        assert problem["code"] == "auth_failed"
        assert str(file.path) not in problem["detail"]
        problem_of(await client.get("/served", headers={"X-API-Key": key}), 401)
    assert "is no file of keys" in caplog.text


def test_with_a_file_of_keys_other_machines_may_ask(file: KeyFile) -> None:
    file.add("ann")
    settings = Settings(keys_file=str(file.path))
    assert make_server(solo(), host="0.0.0.0", store="memory", settings=settings)
