from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest
from langchain_openai import ChatOpenAI

from agentgraph.errors import ConfigurationError
from agentgraph.models import OfflineModel, resolve, resolve_model
from agentgraph.testing import ScriptedModel


@pytest.fixture(autouse=True)
def no_notice_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    resolve._warn_of_offline_model.cache_clear()
    yield
    resolve._warn_of_offline_model.cache_clear()


def test_an_instance_is_itself() -> None:
    model = ScriptedModel([])
    assert resolve_model(model) is model


def test_openai_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    model = resolve_model("openai:gpt-4o")
    assert isinstance(model, ChatOpenAI)
    assert model.model_name == "gpt-4o"


def test_openai_without_a_key_says_so() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        resolve_model("openai:gpt-4o")


def test_another_provider_goes_through_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel([])
    monkeypatch.setattr("langchain.chat_models.init_chat_model", {"acme:x:1": model}.get)
    assert resolve_model("acme:x:1") is model


def test_another_provider_without_langchain_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(ConfigurationError, match="pip install langchain"):
        resolve_model("anthropic:claude")


@pytest.mark.parametrize("name", ["nobody:knows", "anthropic:claude"])
def test_a_provider_that_is_unknown_or_not_installed(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Model '{name}'"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["", "gpt-4o", "openai:", ":gpt-4o", "Offline"])
def test_a_malformed_name_says_what_to_write(name: str) -> None:
    with pytest.raises(ConfigurationError, match="write 'provider:name'"):
        resolve_model(name)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not 3"):
        resolve_model(3)  # type: ignore[arg-type]


def test_the_environment_names_the_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    monkeypatch.setenv("AGENTGRAPH_MODEL", "openai:gpt-4o")
    assert isinstance(resolve_model(None), ChatOpenAI)
    monkeypatch.setenv("AGENTGRAPH_MODEL", "offline")
    assert isinstance(resolve_model(None), OfflineModel)
    assert caplog.records == []


@pytest.mark.parametrize("unset", [True, False])
def test_without_a_model_the_offline_one_answers_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unset: bool
) -> None:
    if not unset:
        monkeypatch.setenv("AGENTGRAPH_MODEL", "")
    for _ in range(3):
        assert isinstance(resolve_model(None), OfflineModel)
    (notice,) = caplog.records
    assert (notice.name, notice.levelno) == ("agentgraph", logging.WARNING)
    assert "AGENTGRAPH_MODEL" in notice.getMessage()


def test_offline_by_name_needs_no_notice(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(resolve_model("offline"), OfflineModel)
    assert caplog.records == []
