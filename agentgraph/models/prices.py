"""What a call of a model costs."""

from __future__ import annotations

from decimal import Decimal

from langchain_core.messages.ai import UsageMetadata

from agentgraph.clock import utc_now

__all__ = ["price_of"]


def price_of(model_name: str | None, usage: UsageMetadata | None) -> Decimal | None:
    """Return the cost in US dollars, or None: unknown, or `agentgraph[cost]` is not installed."""
    if not model_name or not usage:
        return None
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    counted = Usage(**_priced_tokens(usage))
    for name in (model_name, model_name.partition(":")[2]):
        try:
            return calc_price(counted, name, genai_request_timestamp=utc_now()).total_price
        except (LookupError, ValueError):
            continue
    return None


def _priced_tokens(usage: UsageMetadata) -> dict[str, int]:
    read, written = usage.get("input_token_details", {}), usage.get("output_token_details", {})
    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "cache_read_tokens": read.get("cache_read") or 0,
        "cache_write_tokens": read.get("cache_creation") or 0,
        "input_audio_tokens": read.get("audio") or 0,
        "output_audio_tokens": written.get("audio") or 0,
    }
