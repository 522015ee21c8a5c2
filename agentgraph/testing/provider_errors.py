"""The errors of a provider, as the openai client raises them.

Code under test classifies errors by the classes and attributes of the client library.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

_URL = "https://api.openai.com/v1/chat/completions"


def status_error(status: int, retry_after_s: float | None = None) -> Exception:
    """Return what openai raises for an answer with this status: 429 or 5xx."""
    import openai

    http = _http()
    wait = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
    response = http.Response(status, headers=wait, request=http.Request("POST", _URL))
    kind = openai.RateLimitError if status == 429 else openai.InternalServerError
    return kind(f"Scripted answer {status}", response=response, body=None)


def connection_error() -> Exception:
    """Return what openai raises when the connection is lost."""
    import openai

    return openai.APIConnectionError(request=_http().Request("POST", _URL))


def _http() -> ModuleType:
    # A version of openai uses one of the two libraries, and its errors accept only those objects.
    return import_module("httpx2" if find_spec("httpx2") else "httpx")
