from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from langchain_openai import ChatOpenAI

from agentgraph import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.models import OfflineModel, names, resolve, resolve_model
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


@pytest.mark.parametrize("name", ["openai:gpt-4o", "OpenAI:gpt-4o"])
def test_openai_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    model = resolve_model(name)
    assert isinstance(model, ChatOpenAI)
    assert model.model_name == "gpt-4o"


def test_openai_without_a_key_says_so() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        resolve_model("openai:gpt-4o")


def test_another_provider_goes_through_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel([])

    def of_a_later_version(name: str, model_provider: str) -> ScriptedModel:
        assert (name, model_provider) == ("x:1", "acme")
        return model

    monkeypatch.setattr("langchain.chat_models.init_chat_model", of_a_later_version)
    assert resolve_model("acme:x:1") is model


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Make it look as if these packages were not installed, and all others were."""
    monkeypatch.setattr(names, "find_spec", lambda name: None if name in packages else True)


@pytest.mark.parametrize(
    ("packages", "advice"),
    [
        (["langchain"], "pip install langchain$"),
        (["langchain_anthropic"], "pip install langchain-anthropic$"),
        (["langchain", "langchain_anthropic"], "pip install langchain langchain-anthropic$"),
    ],
)
def test_a_provider_whose_package_is_missing_names_that_package(
    monkeypatch: pytest.MonkeyPatch, packages: list[str], advice: str
) -> None:
    without(monkeypatch, *packages)
    with pytest.raises(ConfigurationError, match=f"'anthropic:claude' needs a package: {advice}"):
        resolve_model("anthropic:claude")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("opnai:gpt-4o", "openai:gpt-4o"),
        ("antropic:claude", "anthropic:claude"),
        ("mistral:large", "mistralai:large"),
    ],
)
def test_an_unknown_provider_is_named_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        resolve_model(name)
    provider = name.partition(":")[0]
    assert f"there is no provider {provider!r}; do you mean {meant!r}?" in str(error.value)
    assert "pip install" not in str(error.value)


def test_a_provider_like_no_other_is_told_which_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"no provider 'nobody', only anthropic, .*openai"):
        resolve_model("nobody:knows")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpt-4o", "openai:gpt-4o"),
        ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("gemini-2.5-pro", "google_genai:gemini-2.5-pro"),
        ("", "openai:<name>"),
    ],
)
def test_a_name_without_a_provider_is_told_with_one(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"write 'provider:name', as in '{meant}'"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["gpt-4o", "opnai:gpt-4o", "anthropic:claude"])
def test_an_agent_refuses_a_name_when_it_is_made(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    without(monkeypatch, "langchain_anthropic")
    with pytest.raises(ConfigurationError, match=f"'{name}'") as error:
        Agent("desk", model=name, history=0)
    assert len(error.value.faults) == 2


def test_an_agent_takes_a_model_whose_key_is_not_there_yet() -> None:
    assert Agent("desk", model="openai:gpt-4o").name == "desk"


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
