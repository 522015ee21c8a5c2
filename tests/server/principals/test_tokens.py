"""Bearer tokens: of a real issuer on this machine, which changes its keys, and of others."""

from __future__ import annotations

import hmac
import json
import threading
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, Key, KeySet, OctKey, RSAKey
from starlette.requests import Request

from agentgraph.errors import ConfigurationError
from agentgraph.remote import Principal
from agentgraph.testing import FakeClock
from agentgraph_server.principals.auth import Auth, IssuerUnavailable, Unauthorized
from agentgraph_server.principals.tokens import ClaimNames, jwt_auth
from tests.server.live_server import problem_of, serving, solo

NOW = 1_700_000_000


@dataclass
class Issuer:
    """An OpenID Connect provider on loopback: its discovery document, and its keys."""

    url: str = ""
    keys: list[Key] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    status: int = 200
    document: dict[str, Any] = field(default_factory=dict)

    def rotate(self, kid: str) -> None:
        """Replace all keys by a new one."""
        self.keys = [ECKey.generate_key("P-256", {"kid": kid, "use": "sig"})]

    def token(self, *, key: Key | None = None, alg: str = "ES256", **claims: Any) -> str:
        """Return a token, by default a good one for `agents`."""
        key = key or self.keys[0]
        values = {"iss": self.url, "aud": "agents", "sub": "ann", "exp": NOW + 600, "iat": NOW}
        values |= claims
        values = {name: value for name, value in values.items() if value is not None}
        header = {"alg": alg, "kid": key.kid}
        return jwt.encode(header, values, key, algorithms=[alg])

    def answer(self, path: str) -> Any:
        """Return what it serves at a path."""
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.document}
        return KeySet(self.keys).as_dict(private=False)


@contextmanager
def _served(issuer: Issuer) -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(issuer.answer(self.path)).encode()
            self.send_response(issuer.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with _served(Issuer()) as issuer:
        issuer.rotate("first")
        yield issuer


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock(NOW).installed() as clock:
        yield clock


async def known(auth: Auth, token: str) -> Principal | None:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    principal = auth(Request({"type": "http", "headers": headers}))
    return await principal if isinstance(principal, Awaitable) else principal


async def refusal(auth: Auth, token: str) -> str:
    with pytest.raises(Unauthorized) as refused:
        await known(auth, token)
    return str(refused.value)


async def test_a_token_stands_for_the_principal_of_its_claims(
    issuer: Issuer, clock: FakeClock
) -> None:
    claims = ClaimNames("email", "https://acme.com/org", "realm.roles", "nick")
    auth = jwt_auth(issuer.url, "agents", claims=claims)
    given: dict[str, Any] = {
        "https://acme.com/org": "acme",
        "email": "ann@acme.com",
        "nick": "ann",
        "realm": {"roles": ["read", "run", "admin"]},
    }
    token = issuer.token(**given)
    expected = Principal("ann@acme.com", "acme", frozenset({"read", "run"}), "ann")
    assert await known(auth, token) == expected
    plain = jwt_auth(issuer.url, ["others", "agents"])
    assert await known(plain, issuer.token()) == Principal("ann")
    words = jwt_auth(issuer.url, "agents", claims=ClaimNames(scopes="scope"))
    known_by_words = await known(words, issuer.token(scope="openid read operate"))
    assert known_by_words == Principal("ann", scopes=frozenset({"read", "operate"}))
    nothing = await known(words, issuer.token())
    assert nothing is not None and nothing.scopes == frozenset()


async def test_the_keys_are_fetched_once_and_again_when_they_have_changed(
    issuer: Issuer, clock: FakeClock
) -> None:
    auth = jwt_auth(issuer.url, "agents")
    old = issuer.token()
    for _ in range(3):
        assert await known(auth, old)
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
    issuer.rotate("second")
    clock.advance(31)
    assert await known(auth, issuer.token())
    assert len(issuer.asked) == 4
    assert "a key that its issuer does not have" in await refusal(auth, old)


async def test_tokens_with_unknown_keys_do_not_make_the_server_ask_each_time(
    issuer: Issuer, clock: FakeClock
) -> None:
    auth = jwt_auth(issuer.url, "agents")
    assert await known(auth, issuer.token())
    for n in range(50):
        key = ECKey.generate_key("P-256", {"kid": f"made-up-{n}"})
        await refusal(auth, issuer.token(key=key))
    assert len(issuer.asked) == 2
    clock.advance(31)
    await refusal(auth, issuer.token(key=key))
    assert len(issuer.asked) == 4


async def test_a_key_that_the_issuer_has_withdrawn_is_not_good_for_ever(
    issuer: Issuer, clock: FakeClock
) -> None:
    auth = jwt_auth(issuer.url, "agents")
    token = issuer.token(exp=NOW + 10_000)
    assert await known(auth, token)
    issuer.rotate("second")
    clock.advance(3_601)
    await refusal(auth, token)


@pytest.mark.parametrize(
    ("claims", "word"),
    [
        ({"exp": NOW - 31}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "exp"),
        ({"nbf": NOW + 31}, "nbf"),
        ({"iat": NOW + 31}, "iat"),
        ({"aud": "others"}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": ["others", "more"]}, "aud"),
        ({"iss": "https://login.example.com"}, "iss"),
        ({"iss": None}, "iss"),
        ({"sub": None}, "sub"),
        ({"sub": 7}, "sub"),
    ],
)
async def test_a_token_that_does_not_hold_is_refused_with_the_reason(
    issuer: Issuer, clock: FakeClock, claims: dict[str, Any], word: str
) -> None:
    auth = jwt_auth(issuer.url, "agents")
    assert word in await refusal(auth, issuer.token(**claims))


async def test_clocks_may_differ_a_little(issuer: Issuer, clock: FakeClock) -> None:
    auth = jwt_auth(issuer.url, "agents")
    for name, at in (("exp", NOW - 29), ("nbf", NOW + 29), ("iat", NOW + 29)):
        claims: dict[str, Any] = {name: at}
        assert await known(auth, issuer.token(**claims))


async def test_a_token_that_another_key_has_signed_is_refused(
    issuer: Issuer, clock: FakeClock
) -> None:
    auth = jwt_auth(issuer.url, "agents")
    forged = ECKey.generate_key("P-256", {"kid": "first"})
    assert "signature is wrong" in await refusal(auth, issuer.token(key=forged))
    head, body, signature = issuer.token().split(".")
    other = _encoded({"iss": issuer.url, "aud": "agents", "sub": "root", "exp": NOW + 600})
    for token in (f"{head}.{other}.{signature}", f"{head}.{body}.", f"{head}.{body}.AAAA"):
        assert "signature is wrong" in await refusal(auth, token)


async def test_the_algorithm_is_not_the_senders_choice(issuer: Issuer, clock: FakeClock) -> None:
    key = RSAKey.generate_key(2048, {"kid": "first"})
    issuer.keys = [key]
    auth = jwt_auth(issuer.url, "agents")
    assert await known(auth, issuer.token(alg="RS256"))
    claims = {"iss": issuer.url, "aud": "agents", "sub": "root", "exp": NOW + 600}
    unsigned = f"{_encoded({'alg': 'none', 'kid': 'first'})}.{_encoded(claims)}."
    assert "algorithm" in await refusal(auth, unsigned)
    # Whoever knows the public key can use it as the secret of an HMAC.
    signed = f"{_encoded({'alg': 'HS256', 'kid': 'first'})}.{_encoded(claims)}"
    mac = hmac.digest(key.as_bytes(private=False), signed.encode(), "sha256")
    forged = f"{signed}.{urlsafe_b64encode(mac).decode().rstrip('=')}"
    assert "algorithm" in await refusal(auth, forged)
    for alg in ("HS256", "none", "RS1"):
        with pytest.raises(ConfigurationError, match="checked by public keys"):
            jwt_auth(issuer.url, "agents", algorithms=[alg])


async def test_a_symmetric_key_of_the_issuer_is_not_used(issuer: Issuer, clock: FakeClock) -> None:
    secret = OctKey.generate_key(256, {"kid": "first"})
    issuer.keys = [secret]
    auth = jwt_auth(issuer.url, "agents")
    assert "algorithm" in await refusal(auth, issuer.token(key=secret, alg="HS256"))
    head, body, signature = issuer.token(key=secret, alg="HS256").split(".")
    head = _encoded({"alg": "ES256", "kid": "first"})
    assert "does not have" in await refusal(auth, f"{head}.{body}.{signature}")


def _encoded(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.b.c", "....", "e30.e30.e30", "\xe9.b.c"])
async def test_what_is_no_token_is_left_to_others(
    issuer: Issuer, clock: FakeClock, token: str
) -> None:
    auth = jwt_auth(issuer.url, "agents")
    headers = [(b"authorization", f"Bearer {token}".encode("latin-1"))]
    principal = auth(Request({"type": "http", "headers": headers}))
    assert isinstance(principal, Awaitable) and await principal is None
    assert issuer.asked == []


async def test_keys_may_be_in_a_file(issuer: Issuer, clock: FakeClock, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(KeySet(issuer.keys).as_dict(private=False)))
    auth = jwt_auth("https://login.example.com", "agents", keys=str(file))
    assert await known(auth, issuer.token(iss="https://login.example.com"))
    assert issuer.asked == []


async def test_an_issuer_that_is_away_shuts_out_nobody_who_is_known(
    issuer: Issuer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    late = jwt_auth(issuer.url, "agents")
    auth = jwt_auth(issuer.url, "agents")
    assert await known(auth, issuer.token())
    issuer.status = 500
    clock.advance(3_601)
    assert await known(auth, issuer.token(exp=NOW + 9_000))
    with pytest.raises(IssuerUnavailable):
        await known(late, issuer.token(exp=NOW + 9_000))
    assert "answers 500" in caplog.text
    issuer.status = 200
    clock.advance(31)
    assert await known(late, issuer.token(exp=NOW + 9_000))


async def test_keys_are_fetched_from_where_nobody_can_replace_them(
    issuer: Issuer, clock: FakeClock
) -> None:
    for address in ("http://login.example.com", "ftp://login.example.com"):
        with pytest.raises(ConfigurationError, match="over https"):
            jwt_auth(address, "agents")
        with pytest.raises(ConfigurationError, match="over https"):
            jwt_auth("https://login.example.com", "agents", keys=f"{address}/keys")
    for document in ({"jwks_uri": "http://example.com/keys"}, {"issuer": "https://other.com"}):
        issuer.document = document
        with pytest.raises(IssuerUnavailable):
            await known(jwt_auth(issuer.url, "agents"), issuer.token())


def test_without_an_audience_no_token_is_good() -> None:
    with pytest.raises(ConfigurationError, match="audience"):
        jwt_auth("https://login.example.com", "")


async def test_a_server_takes_tokens_by_its_settings(issuer: Issuer) -> None:
    with FakeClock(NOW).installed():
        good = issuer.token(exp=4_000_000_000, org="acme")
    stale, strange = issuer.token(), issuer.token(exp=4_000_000_000, sub="auth0|7", org="acme")
    async with serving(
        solo(),
        jwt_issuer=issuer.url,
        jwt_audience="agents",
        jwt_tenant_claim="org",
        api_keys=["plain"],
    ) as client:
        answers = [
            await client.get("/served", headers={"Authorization": f"Bearer {key}"})
            for key in (good, "plain", stale, strange)
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 401, 403]
    assert "expired" in problem_of(answers[2], 401)["detail"]
    assert answers[2].headers["www-authenticate"] == 'Bearer error="invalid_token"'
    problem = problem_of(answers[3], 403)
    assert problem["code"] == "principal" and "'auth0|7'" in problem["detail"]
