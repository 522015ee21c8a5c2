"""What the texts of errors say of a provider's error, and what they never say."""

from __future__ import annotations

import httpx
import openai
import pytest

from agentgraph.errors import ModelError, in_words, kind_of, redacted
from agentgraph.testing import Fault

KEY = "sk-proj-4f9aQ2mZx81LkpT0"
HEX = "9f86d081884c7d659a2feaa0c55ad015"


class APIStatusError(Exception):
    """An error as the clients of OpenAI and Anthropic raise it."""

    def __init__(self, message: str, status_code: int, body: object) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.body = body


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            APIStatusError("Error code: 404 - {…}", 404, {"message": "No model 'gpt-9'."}),
            "APIStatusError 404: No model 'gpt-9'.",
        ),
        (
            APIStatusError(
                "Error code: 400 - {…}",
                400,
                {"type": "error", "error": {"type": "x", "message": "prompt is too long"}},
            ),
            "APIStatusError 400: prompt is too long",
        ),
        (APIStatusError("Overloaded", 529, None), "APIStatusError 529: Overloaded"),
        (ValueError("no such\n  model"), "ValueError: no such model"),
        (ValueError(), "ValueError"),
    ],
)
def test_an_error_in_words_has_its_class_its_status_and_the_provider_s_message(
    error: Exception, words: str
) -> None:
    assert in_words(error) == words


def test_the_status_of_an_http_error_is_that_of_its_response() -> None:
    request = httpx.Request("GET", "https://api.example/v1")
    error = httpx.HTTPStatusError("no", request=request, response=httpx.Response(503))
    assert kind_of(error) == "HTTPStatusError 503"


def test_a_real_error_of_openai_is_told() -> None:
    error = Fault.rate_limit().error
    assert isinstance(error, openai.RateLimitError)
    assert in_words(error) == "RateLimitError 429: Scripted answer 429"


def test_a_model_error_has_a_public_text_without_the_provider_s_words() -> None:
    error = ModelError.of("the model", ValueError("no quota"))
    assert (str(error), error.public) == (
        "the model failed: ValueError: no quota",
        "the model failed: ValueError",
    )
    again = ModelError.of("the graph", error)
    assert again.public == "the graph failed: the model failed: ValueError"
    assert ModelError("of our own").public == "of our own"


def test_a_long_text_is_cut() -> None:
    assert len(in_words(ValueError("word " * 1000))) < 450


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}. You can find your API key at https://x.example.",
        "Incorrect API key provided: sk-proj-********T0ab.",
        "Incorrect API key provided: hunter2.",
        f"headers={{'Authorization': 'Bearer {KEY}', 'Accept': '*/*'}}",
        f"Authorization: Basic {HEX}",
        f"sent with Bearer {HEX}",
        f"GET https://api.example/v1?key={HEX}&alt=json failed",
        f"GET https://api.example/v1?alt=json&api_key={HEX} failed",
        "could not reach https://ann:hunter2@proxy.example:8080/v1",
        "could not reach postgresql://ann:hunter2/with@slash@db.example/app",
        f"x-api-key: {HEX}",
        f'{{"api_key": "{KEY}"}}',
        "password=hunter2",
        "AIzaSyD4f9aQ2mZx81LkpT0",
        "AKIA4F9AQ2MZX81LKPT0",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4",
        f"the deployment {HEX} refused",
        "ghp_4f9aQ2mZx81LkpT0",
    ],
)
def test_secrets_are_left_out(text: str) -> None:
    told = redacted(text)
    assert "***" in told
    for secret in (KEY, HEX, "hunter2", "4f9aQ2mZx81LkpT0", "4F9AQ2MZX81LKPT0", "SflKxw", "T0ab"):
        assert secret not in told


def test_the_secrets_of_the_environment_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "correct-horse")
    assert redacted("the key correct-horse is not valid") == "the key *** is not valid"


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 8192 tokens, but your messages have 9000 tokens.",
        "max_tokens: 4096 is too large",
        "The model claude-sonnet-4-5-20250929 does not exist",
        "You exceeded your current quota, please check your plan: https://x.example/docs/errors",
        "Missing required parameter: 'tools[0].function'.",
        "Basic authentication is required; a bearer token was missing",
        "Invalid value: 'developer'. Supported values are: 'system' and 'user'.",
        "Thread 3f2b8c1a-9d4e-4f6a-8b7c-1a2b3c4d5e6f was not found",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text
