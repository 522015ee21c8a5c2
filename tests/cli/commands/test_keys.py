"""`agentgraph keys`: a key is printed once, listed without itself, and revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgraph_server.principals.key_file import KeyFile
from tests.cli.conversations import run


@pytest.fixture
def file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> KeyFile:
    monkeypatch.setenv("AGENTGRAPH_KEYS_FILE", str(folder / "keys.json"))
    return KeyFile(folder / "keys.json")


def test_a_key_is_printed_once_and_has_what_was_asked_for(file: KeyFile) -> None:
    options = ["--tenant", "acme", "--scopes", "read, operate", "--expires", "90d"]
    result = run("keys", "add", "ann", *options, "--participant", "ann-1")

    assert result.exit_code == 0
    key = result.stdout.strip()
    assert "\n" not in key and key not in file.path.read_text()
    (entry,) = file.read()
    assert (entry.name, entry.tenant, entry.participant) == ("ann", "acme", "ann-1")
    assert entry.scopes == ("read", "operate")
    assert entry.expires_at == entry.created_at + 90 * 86_400


def test_keys_are_listed_without_themselves(file: KeyFile) -> None:
    key = run("keys", "add", "ann").stdout.strip()
    table, lines = run("keys", "list").stdout, run("keys", "list", "--json").stdout

    assert "ann" in table and "run read decide" in table and "never" in table
    assert key not in table + lines
    (facts,) = map(json.loads, lines.splitlines())
    assert (facts["name"], facts["expires_at"], facts["expired"]) == ("ann", None, False)


def test_a_key_is_revoked_by_its_name_or_its_id(file: KeyFile) -> None:
    run("keys", "add", "ann")
    run("keys", "add", "bob")
    first = file.read()[0]

    assert run("keys", "revoke", first.id).stdout == f"revoked {first.id} of default/ann\n"
    assert run("keys", "revoke", "bob", "--tenant", "other").exit_code == 2
    assert run("keys", "revoke", "bob").exit_code == 0
    assert file.read() == []
    assert run("keys", "list").stdout == "There are no keys.\n"
    assert "there is no key 'ann'" in run("keys", "revoke", "ann").stderr


def test_what_is_wrong_with_a_key_is_told(file: KeyFile) -> None:
    result = run("keys", "add", "a b", "--scopes", "fly")
    assert result.exit_code == 2
    assert "'a b'" in result.stderr and "there is no scope 'fly'" in result.stderr
    assert "write '30s'" in run("keys", "add", "ann", "--expires", "soon").stderr
    assert not file.path.exists()


def test_without_a_file_it_is_told_which_setting_to_make(folder: Path) -> None:
    result = run("keys", "add", "ann")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "AGENTGRAPH_KEYS_FILE" in result.stderr
    other = folder / "other.json"
    assert run("keys", "add", "ann", "--file", str(other)).exit_code == 0
    assert len(KeyFile(other).read()) == 1
