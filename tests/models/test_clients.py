"""One model on several event loops: in turns, at the same time, and after a loop has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from typing import Any

import httpx
import pytest
from langchain_core.language_models import FakeListChatModel
from pydantic import Field

from agentgraph import Agent
from agentgraph.models import resolve_model
from tests.wire import Wire, chat_openai, serve, text


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serve() as served:
        yield served


@pytest.mark.parametrize("guards", ["default", None])
def test_models_of_one_provider_answer_on_any_loop(wire: Wire, guards: Any) -> None:
    options: dict[str, Any] = {} if guards == "default" else {"guards": guards}
    first, second = (
        Agent(name, model=chat_openai(wire), **options) for name in ("first", "second")
    )

    async def alternate() -> list[str]:
        answers = []
        for _ in range(2):
            answers.append((await first.ainvoke("hello")).text)
            answers.append(second.invoke("hello").text)
        return [*answers, *[reply.text for reply in await asyncio.gather(first.ainvoke("hello"))]]

    wire.script(*[text("Yes.")] * 26)
    answers = [first.invoke("hello").text]
    for _ in range(2):
        answers += asyncio.run(alternate())
        answers += [second.invoke("hello").text]
    with ThreadPoolExecutor(8) as pool:
        answers += pool.map(lambda n: (first, second)[n % 2].invoke("hello").text, range(12))

    assert answers == ["Yes."] * 25


def test_a_connection_is_used_again_on_its_loop(wire: Wire) -> None:
    model = chat_openai(wire)
    agent = Agent("a", model=model)
    wire.script(*[text("Yes.")] * 3)
    for _ in range(3):
        agent.invoke("hello")

    transports = model.root_async_client._client._transport._by_loop
    [connections] = {len(transport._pool.connections) for transport in transports.values()}
    assert connections == 1


class Sdk:
    """A provider's client."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client


class Provider(FakeListChatModel):
    """A model of another provider, whose client is made on first use."""

    responses: list[str] = Field(default_factory=list)
    address: str = ""
    library: str = "httpx"

    @cached_property
    def _async_client(self) -> Sdk:
        return Sdk(import_module(self.library).AsyncClient(base_url=self.address))


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_the_clients_of_other_providers_have_a_pool_for_each_loop_too(
    wire: Wire, library: str
) -> None:
    model = Provider(address=wire.base_url, library=library)
    resolve_model(model)

    async def ask() -> int:
        return (await model._async_client._client.get("/models")).status_code

    statuses = [asyncio.run(ask()) for _ in range(3)]
    assert len(set(statuses)) == 1


def test_a_transport_without_connections_stays_as_it_is() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    model = Provider()
    model.__dict__["_async_client"] = sdk = Sdk(httpx.AsyncClient(transport=transport))
    resolve_model(model)
    assert sdk._client._transport is transport
