"""The principal: who asks a server, in a tenant, with scopes; tools ask who it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agentgraph.contexts import scope

PRINCIPAL_KEY = "ag.principal"
"""Where the metadata of an envelope have its principal; participants are not shown it."""
AUTH_USER = "langgraph_auth_user"
"""Where graphs find it by LangGraph's convention, in `config["configurable"]`."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a person or a program, in a tenant, with scopes.

        def auth(request):
            return Principal(request.headers["x-user"], tenant="acme")

        app = create_app(support, auth=auth)

    It owns the sessions of its tenant that it has opened or takes part in, where it speaks as the
    participant `participant`, by default its name. With the scope `operate` all sessions of its
    tenant are its own.
    """

    name: str
    tenant: str = "default"
    scopes: frozenset[str] = frozenset({"run", "read", "decide"})
    participant: str | None = None

    @property
    def speaker(self) -> str:
        """The participant as which it speaks."""
        return self.participant or self.name

    @property
    def operates(self) -> bool:
        """Whether all sessions of its tenant are its own."""
        return "operate" in self.scopes

    def to_dict(self) -> dict[str, Any]:
        """Return the principal as a JSON object."""
        return {
            "name": self.name,
            "tenant": self.tenant,
            "scopes": sorted(self.scopes),
            "participant": self.participant,
        }

    @classmethod
    def from_dict(cls, data: object) -> Principal | None:
        """Read a principal; None if it is none."""
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            return None
        tenant, participant = data.get("tenant"), data.get("participant")
        scopes = data.get("scopes")
        return cls(
            data["name"],
            tenant if isinstance(tenant, str) else "default",
            frozenset(scopes) if isinstance(scopes, list | tuple) else frozenset(),
            participant if isinstance(participant, str) else None,
        )


class AuthUser(Mapping[str, Any]):
    """A principal as graphs on a LangGraph platform find their user, also in `runtime.server_info`.

    It is no dict: a `RemoteGraph` sends dicts of its config on to a server of somebody else.
    """

    is_authenticated = True

    def __init__(self, principal: Principal) -> None:
        self.identity = principal.name
        self.display_name = principal.speaker
        self.permissions = sorted(principal.scopes)
        self.tenant = principal.tenant

    def __getitem__(self, key: str) -> Any:
        if key not in _USER_KEYS:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_USER_KEYS)

    def __len__(self) -> int:
        return len(_USER_KEYS)


_USER_KEYS = ("identity", "display_name", "is_authenticated", "permissions", "tenant")
_principal: ContextVar[Principal | None] = ContextVar("agentgraph_principal", default=None)


def current_principal() -> Principal | None:
    """Return who asks: in a tool, who has sent the input or the decision that its run carries out.

        @tool
        def refund(order: str) -> str:
            principal = current_principal()
            return "no" if principal and principal.tenant != tenant_of(order) else pay(order)

    None outside of a server, and for what its own process has sent.
    """
    return _principal.get()


def inside_principal(principal: Principal | None) -> scope[Principal | None]:
    """Make what is done inside a `with` block be done for this principal."""
    return scope(_principal, principal)
