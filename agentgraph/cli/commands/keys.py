"""`agentgraph keys`: adds, lists and revokes the API keys of a server, in a file.

Only the functions import the server, so that other commands work without its packages.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from agentgraph.cli.exits import errors_reported, fail

if TYPE_CHECKING:
    from agentgraph_server.principals.key_file import ApiKey, KeyFile

keys = typer.Typer(
    no_args_is_help=True,
    help="Add, list and revoke the API keys of a server, in a file that it reads.",
)

File = Annotated[
    str | None,
    typer.Option(
        "--file", metavar="PATH", help="The file; by default that of AGENTGRAPH_KEYS_FILE."
    ),
]


@keys.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    tenant: Annotated[str, typer.Option(help="The tenant whose sessions it sees.")] = "default",
    scopes: Annotated[
        str, typer.Option(help="What it may do, of run, read, decide and operate.")
    ] = "run,read,decide",
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="When it ends, such as 90d or 12h.")
    ] = None,
    participant: Annotated[
        str | None, typer.Option(metavar="NAME", help="As whom it speaks; by default as NAME.")
    ] = None,
    file: File = None,
) -> None:
    """Make a key, and print it: once, as only its hash is stored.

    Servers that read the file know it at once.
    """
    with errors_reported():
        from agentgraph.sessions.state.record import seconds_of

        text = _key_file(file).add(
            name,
            tenant=tenant,
            scopes=[scope.strip() for scope in scopes.split(",") if scope.strip()],
            participant=participant,
            expires_in_s=seconds_of("--expires", expires),
        )
        typer.echo(text)


@keys.command("list")
def list_keys(
    file: File = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, a key in each line.")
    ] = False,
) -> None:
    """List the keys by name and id, without the keys themselves."""
    with errors_reported():
        entries = _key_file(file).read()
        if as_json:
            for key in entries:
                typer.echo(json.dumps(_facts_of(key)))
        elif entries:
            _show(entries)
        else:
            typer.echo("There are no keys.")


@keys.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", show_default=False)],
    tenant: Annotated[str | None, typer.Option(help="Only the keys of this tenant.")] = None,
    file: File = None,
) -> None:
    """Revoke all keys of a name, or the one of an id; servers refuse them at once."""
    with errors_reported():
        revoked_keys = _key_file(file).revoke(name, tenant=tenant)
        if not revoked_keys:
            fail(f"there is no key {name!r}: `agentgraph keys list` shows the names and ids")
        for key in revoked_keys:
            typer.echo(f"revoked {key.id} of {key.tenant}/{key.name}")


def _key_file(path: str | None) -> KeyFile:
    from agentgraph_server.principals.key_file import KeyFile
    from agentgraph_server.settings import Settings

    path = path or Settings().keys_file
    if path is None:
        fail("which file? Set AGENTGRAPH_KEYS_FILE, for the server too, or give --file PATH")
    return KeyFile(path)


def _facts_of(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": list(key.scopes),
        "participant": key.participant,
        "created_at": _instant(key.created_at),
        "expires_at": None if key.expires_at is None else _instant(key.expires_at),
        "expired": key.has_expired,
    }


def _show(entries: list[ApiKey]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("id", "name", "tenant", "scopes", "speaks as", "expires", box=None)
    for key in entries:
        end = "never" if key.expires_at is None else _instant(key.expires_at)[:16]
        if key.has_expired:
            end = f"expired {end}"
        scopes = " ".join(key.scopes)
        table.add_row(key.id, key.name, key.tenant, scopes, key.participant or key.name, end)
    Console().print(table)


def _instant(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
