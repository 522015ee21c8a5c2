from __future__ import annotations

import sys
from decimal import Decimal

import pytest
from langchain_core.messages.ai import UsageMetadata

from agentgraph.models import price_of


def usage(read: int, written: int, *, cached: int = 0) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=read,
        output_tokens=written,
        total_tokens=read + written,
        input_token_details={"cache_read": cached},
    )


def test_a_known_model_has_a_price() -> None:
    assert price_of("gpt-4o", usage(1_000_000, 0)) == Decimal("2.5")
    assert price_of("openai:gpt-4o", usage(0, 1_000_000)) == Decimal("10")
    assert price_of("gpt-4o", usage(1_000_000, 0, cached=1_000_000)) == Decimal("1.25")


def test_what_is_unknown_has_none() -> None:
    assert price_of("scripted", usage(1, 1)) is None
    assert price_of("gpt-4o", None) is None
    assert price_of(None, usage(1, 1)) is None
    assert price_of("gpt-4o", usage(1, 1, cached=5)) is None


def test_without_the_extra_there_is_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert price_of("gpt-4o", usage(1, 1)) is None
