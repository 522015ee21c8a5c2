"""API keys in a file: hashed, each with a name, a tenant, scopes, and an end.

`agentgraph keys` writes the file, and servers read it: again as soon as it has changed, so that a
key that is revoked is refused at once.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.remote import Principal
from agentgraph_server.principals.auth import Auth, Unauthorized, token_of
from agentgraph_server.principals.principal import SCOPES, principal_faults
from agentgraph_server.wire import instant

try:
    import fcntl
except ImportError:  # on Windows two writers at once may lose a key
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

PREFIX = "agk_"
"""How keys begin, so that scanners for secrets find one that was published by mistake."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, as the file has it: all but the key itself."""

    digest: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    participant: str | None
    created_at: float
    expires_at: float | None

    @property
    def id(self) -> str:
        """What lists show, and `revoke` takes beside a name."""
        return self.digest[:12]

    @property
    def has_expired(self) -> bool:
        """Whether its time is over."""
        return self.expires_at is not None and self.expires_at <= clock().wall()

    @property
    def principal(self) -> Principal:
        """Whom it stands for."""
        return Principal(self.name, self.tenant, frozenset(self.scopes), self.participant)

    def to_dict(self) -> dict[str, object]:
        """Return what lists show of it, as a JSON object."""
        return {
            "id": self.id,
            "name": self.name,
            "tenant": self.tenant,
            "scopes": [*self.scopes],
            "participant": self.participant,
            "created_at": instant(self.created_at),
            "expires_at": None if self.expires_at is None else instant(self.expires_at),
            "expired": self.has_expired,
        }


class KeyFile:
    """A file of keys; changes are atomic, and no two writers lose each other's."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self) -> list[ApiKey]:
        """Return the keys, none if there is no file; `ConfigurationError` if it is none of ours."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise self._fault(f"cannot be read: {error}") from error
        try:
            data = json.loads(text)
            if data["version"] != _VERSION:
                raise ValueError("a newer agentgraph has written it")
            return [_key_in(entry) for entry in data["keys"]]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._fault(f"is no file of keys: {error}") from error

    def add(
        self,
        name: str,
        *,
        tenant: str = "default",
        scopes: Sequence[str] = ("run", "read", "decide"),
        participant: str | None = None,
        expires_in_s: float | None = None,
    ) -> str:
        """Add a key, and return it: it is not stored, and cannot be had again.

        Raises `ConfigurationError` with every fault of the values.
        """
        faults = principal_faults(Principal(name, tenant, frozenset(scopes), participant))
        names = ", ".join(SCOPES)
        if not scopes:
            faults.append(f"a key without scopes may do nothing: give some of {names}")
        strangers = [scope for scope in scopes if scope not in SCOPES]
        faults += [f"there is no scope {scope!r}: there are {names}" for scope in strangers]
        if faults:
            raise ConfigurationError(faults, code="keys")
        text, now = PREFIX + secrets.token_urlsafe(32), clock().wall()
        end = None if expires_in_s is None else now + expires_in_s
        own_scopes = tuple(scope for scope in SCOPES if scope in scopes)
        key = ApiKey(_digest(text), name, tenant, own_scopes, participant, now, end)
        self._change(lambda keys: ([*keys, key], None))
        return text

    def revoke(self, name_or_id: str, *, tenant: str | None = None) -> list[ApiKey]:
        """Remove the keys of a name, or the one of an id; return them, none if there are none."""

        def without(keys: list[ApiKey]) -> tuple[list[ApiKey], list[ApiKey]]:
            revoked_keys = [
                key
                for key in keys
                if name_or_id in (key.name, key.id) and tenant in (None, key.tenant)
            ]
            return [key for key in keys if key not in revoked_keys], revoked_keys

        return self._change(without)

    def _change(self, change: Callable[[list[ApiKey]], tuple[list[ApiKey], T]]) -> T:
        """Read the keys and write others; nobody else writes between the two."""
        try:
            with self._lock():
                keys, result = change(self.read())
                self._write(keys)
        except OSError as error:
            raise self._fault(f"cannot be written: {error}") from error
        return result

    def _write(self, keys: Sequence[ApiKey]) -> None:
        data = {"version": _VERSION, "keys": [asdict(key) for key in keys]}
        # Beside the file, as a rename is atomic only within a file system.
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(file, "w", encoding="utf-8") as stream:
                stream.write(json.dumps(data, indent=2) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise

    @contextmanager
    def _lock(self) -> Iterator[None]:
        # A file of its own: the file of keys is replaced, and a lock on the old one locks nothing.
        lock = self.path.with_name(f".{self.path.name}.lock")
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _fault(self, text: str) -> ConfigurationError:
        return ConfigurationError(f"the file of keys {str(self.path)!r} {text}", code="keys_file")


def key_file_auth(path: str | Path) -> Auth:
    """Return the function that knows principals by the keys of a file that `agentgraph keys` made.

    The file is read again when it has changed. Raises `ConfigurationError` if it cannot be read,
    or if there is none: a server that nobody can use is a mistake.
    """
    file = KeyFile(path)
    if not file.path.exists():
        raise ConfigurationError(
            f"there is no file of keys {str(path)!r}: `agentgraph keys add NAME` makes it",
            code="keys_file",
        )
    stamp = _stamp_of(file.path)  # before the read: a change in between is seen at the next request
    keys = _by_digest(file)

    def authenticate(request: Request) -> Principal | None:
        nonlocal keys, stamp
        token = token_of(request.headers)
        if not token:
            return None
        if (new_stamp := _stamp_of(file.path)) != stamp:
            # Whatever it says from now on holds: a fault in it lets nobody in.
            keys, stamp = {}, new_stamp
            keys = _by_digest(file)
        key = keys.get(_digest(token))
        if key is not None and key.has_expired:
            raise Unauthorized("this API key has expired: ask the operator for another")
        return None if key is None else key.principal

    return authenticate


def _by_digest(file: KeyFile) -> Mapping[str, ApiKey]:
    return {key.digest: key for key in file.read()}


def _stamp_of(path: Path) -> tuple[int, ...]:
    """Return what tells one version of a file from another; nothing if there is none."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _digest(key: str) -> str:
    """Return the hash of a key.

    A fast one, without salt, is right: a key has 256 random bits, which nobody can try one by one,
    unlike the words that people choose. A slow one would cost each request, and whoever sends
    wrong keys could make the server do nothing else. Keys are looked up by their hashes, so the
    time of a look-up tells nothing about the keys either.
    """
    return sha256(key.encode("latin-1", "replace")).hexdigest()


def _key_in(entry: Mapping[str, Any]) -> ApiKey:
    """Read an entry of the file; `ValueError` or `TypeError` if it is malformed."""
    key = ApiKey(**{**entry, "scopes": tuple(entry["scopes"])})
    texts = (key.digest, key.name, key.tenant, *key.scopes, key.participant or "")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a name of it is no text")
    if not isinstance(key.expires_at, int | float | None):
        raise ValueError("an end of it is no number")
    return key
