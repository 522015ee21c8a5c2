"""`agentgraph keys`: adds, lists and revokes the API keys of a server, in a file.

Only the functions import the server, so that other commands work without its packages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from agentgraph.cli.exits import errors_reported, fail

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
        from agentgraph_server.principals.key_file import KeyFile

        text = KeyFile(_path(file)).add(
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
        from agentgraph_server.principals.key_file import KeyFile

        entries = [key.to_dict() for key in KeyFile(_path(file)).read()]
        if as_json:
            for entry in entries:
                typer.echo(json.dumps(entry))
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
        from agentgraph_server.principals.key_file import KeyFile

        revoked_keys = KeyFile(_path(file)).revoke(name, tenant=tenant)
        if not revoked_keys:
            fail(f"there is no key {name!r}: `agentgraph keys list` shows the names and ids")
        for key in revoked_keys:
            typer.echo(f"revoked {key.id} of {key.tenant}/{key.name}")


def _path(path: str | None) -> str:
    from agentgraph_server.settings import Settings

    path = path or Settings().keys_file
    if path is None:
        fail("which file? Set AGENTGRAPH_KEYS_FILE, for the server too, or give --file PATH")
    return path


def _show(entries: Sequence[Mapping[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("id", "name", "tenant", "scopes", "speaks as", "expires", box=None)
    for entry in entries:
        end = str(entry["expires_at"] or "never")[:16]
        speaker = str(entry["participant"] or entry["name"])
        cells = [str(entry[name]) for name in ("id", "name", "tenant")]
        scopes = " ".join(map(str, entry["scopes"])) if isinstance(entry["scopes"], list) else ""
        table.add_row(*cells, scopes, speaker, f"expired {end}" if entry["expired"] else end)
    Console().print(table)
