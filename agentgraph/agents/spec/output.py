"""The form of an answer: shown to the model as a tool, and checked when the model calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from types import UnionType
from typing import Any, Protocol, TypeAlias, TypeVar

from langchain_core.messages import AIMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import TypeAdapter

Form = TypeVar("Form")
_Form = TypeVar("_Form", covariant=True)


class Strategy(Protocol[_Form]):
    """LangChain's `ToolStrategy` or `ProviderStrategy`, known by its form."""

    @property
    def schema(self) -> type[_Form] | UnionType | dict[str, Any]:
        """Return the form."""
        ...


ResponseFormat: TypeAlias = type | Mapping[str, Any]
"""A pydantic model, dataclass or TypedDict; or a JSON schema, which is not enforced."""


class OutputFormat:
    """A form that answers must have: `spec` is the tool that the model sees, under `name`.

    Answers are stored as JSON values; `load` converts them back to the object.
    """

    def __init__(self, form: ResponseFormat) -> None:
        self.spec: dict[str, Any] = convert_to_openai_tool(
            dict(form) if isinstance(form, Mapping) else form
        )
        self.name: str = self.spec["function"]["name"]
        self._adapter: TypeAdapter[Any] = TypeAdapter(
            dict[str, Any] if isinstance(form, Mapping) else form
        )

    def dump(self, value: object) -> object:
        """Check an answer and return it as JSON values; raises `ValueError` if it does not fit."""
        return self._adapter.dump_python(self._adapter.validate_python(value), mode="json")

    def text_of(self, message: AIMessage) -> str | None:
        """Return a message's answer in this form as JSON, None where no call in it fits."""
        for call in message.tool_calls:
            if call["name"] == self.name:
                with suppress(ValueError):
                    return json.dumps(self.dump(call["args"]), ensure_ascii=False)
        return None

    def fits(self, text: str) -> bool:
        """Tell whether a text is an answer in this form."""
        return self.read(text) is not None

    def load(self, json: object) -> object:
        """Return the object for dumped values.

        Raises `ValueError` where the form has changed and the stored values do not fit it.
        """
        return self._adapter.validate_python(json)

    def read(self, text: str) -> object | None:
        """Parse a text in this form; return None if it is not in this form."""
        try:
            return self.dump(json.loads(text))
        except ValueError:
            return None
