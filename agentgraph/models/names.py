"""The names of models, as in "openai:gpt-5-mini": which can be used, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec


def split_name(model: str) -> tuple[str, str]:
    """Return a model's provider, as LangChain writes it, and its name there."""
    provider, _, name = model.partition(":")
    return provider.strip().replace("-", "_").lower(), name


def name_fault(model: str) -> str | None:
    """Return what is wrong with the name of a model and what to do, None if it can be used.

    A name has a provider, and the provider's package is installed. Neither the model nor its key is
    looked for: only the provider knows them.
    """
    provider, name = split_name(model)
    if model == "offline":
        return None
    if not provider or not name:
        meant = f"{_provider_of(model)}:{model}" if model and ":" not in model else "openai:<name>"
        return f"{model!r} names no model: write 'provider:name', as in {meant!r}, or 'offline'"
    if provider == "openai":
        return None
    package = _PACKAGES.get(provider)
    if package is None and not _knows(provider, name):
        return f"model {model!r}: {_advice(provider, name)}"
    missing = [p for p in ("langchain", package) if p and find_spec(p.replace("-", "_")) is None]
    if missing:
        return f"model {model!r} needs a package: pip install {' '.join(missing)}"
    return None


def _advice(provider: str, name: str) -> str:
    """Say which provider is unknown, and the one with the nearest name."""
    nearest = get_close_matches(provider, ["openai", *_PACKAGES], 1)
    if nearest:
        return f"there is no provider {provider!r}; do you mean '{nearest[0]}:{name}'?"
    known = ", ".join(sorted(["openai", *_PACKAGES]))
    return f"there is no provider {provider!r}, only {known}"


def _provider_of(model: str) -> str:
    """Return the provider of a model that was named without one."""
    beginnings = (p for begin, p in _BEGINNINGS.items() if model.lower().startswith(begin))
    return next(beginnings, "openai")


def _knows(provider: str, name: str) -> bool:
    """Ask LangChain for a provider that is not in the list: a later version may have it."""
    try:
        from langchain.chat_models import init_chat_model
    except ImportError:
        return False
    try:
        init_chat_model(name, model_provider=provider)
    except ValueError:
        return False
    except Exception:  # the provider is known: its class misses a package, or a key
        return True
    return True


_PACKAGES: Mapping[str, str] = {
    "anthropic": "langchain-anthropic",
    "anthropic_bedrock": "langchain-aws",
    "azure_ai": "langchain-azure-ai",
    "azure_openai": "langchain-openai",
    "baseten": "langchain-baseten",
    "bedrock": "langchain-aws",
    "bedrock_converse": "langchain-aws",
    "cohere": "langchain-cohere",
    "deepseek": "langchain-deepseek",
    "fireworks": "langchain-fireworks",
    "google_anthropic_vertex": "langchain-google-vertexai",
    "google_genai": "langchain-google-genai",
    "google_vertexai": "langchain-google-vertexai",
    "groq": "langchain-groq",
    "huggingface": "langchain-huggingface",
    "ibm": "langchain-ibm",
    "litellm": "langchain-litellm",
    "mistralai": "langchain-mistralai",
    "nvidia": "langchain-nvidia-ai-endpoints",
    "ollama": "langchain-ollama",
    "openrouter": "langchain-openrouter",
    "perplexity": "langchain-perplexity",
    "together": "langchain-together",
    "upstage": "langchain-upstage",
    "xai": "langchain-xai",
}
"""The package of each provider that LangChain knows."""
_BEGINNINGS: Mapping[str, str] = {
    "claude": "anthropic",
    "command": "cohere",
    "deepseek": "deepseek",
    "gemini": "google_genai",
    "grok": "xai",
    "mistral": "mistralai",
    "sonar": "perplexity",
}
"""How the names of models begin whose provider is not OpenAI."""
