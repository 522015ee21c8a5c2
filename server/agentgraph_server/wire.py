"""What the JSON of requests and answers has in common."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticSerializationError, from_json, to_json
from starlette.requests import HTTPConnection
from starlette.types import Scope

MAX_DEPTH = 100
"""How deep a value may be nested: the log of a session has room for it and for its own levels."""


class RequestBody(BaseModel):
    """The body of a request: a field that it does not have is a fault."""

    model_config = ConfigDict(extra="forbid")


def check_storable(value: Any, depth: int = 0) -> Any:
    """Raise `ValueError` for JSON values that a store cannot keep."""
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("holds a number of more than 64 bits")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError("holds half a character (a lone surrogate)") from error
    parts = (*value.keys(), *value.values()) if isinstance(value, dict) else value
    for part in parts if isinstance(value, dict | list) else ():
        check_storable(part, depth + 1)
    return value


def json_value(value: Any) -> Any:
    """Return a value of a model or a tool as JSON, in the same way as events do."""
    try:
        return from_json(to_json(value, fallback=str, inf_nan_mode="null", bytes_mode="base64"))
    except PydanticSerializationError:
        return ascii(value)


JsonValue = Annotated[Any, BeforeValidator(json_value)]
"""A value of a model, a tool or a store, in an answer."""
Text = Annotated[str, BeforeValidator(json_value)]
"""A text of a model or a tool, in an answer."""
Storable = Annotated[Any, AfterValidator(check_storable)]
"""A JSON value in a request."""
Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(check_storable)]
"""A name in a request: of a participant, a key, a type."""
JsonObject = Annotated[dict[str, Any], AfterValidator(check_storable)]
"""A JSON object in a request."""


def address(connection: HTTPConnection, path: str) -> str:
    """Return a path of this application as clients see it: at `public_url`, or where it is mounted.

    The header `Host` has no part in it: whoever sends a request chooses that.
    """
    public_url = connection.app.state.settings.public_url
    return f"{public_url or connection.scope.get('root_path', '')}{path}"


def path_of(scope: Scope) -> str:
    """Return the path of a request below where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def instant(seconds: float) -> str:
    """Return an instant as envelopes have it: ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
