"""The answer that a `response_format` asks for: a call of a form's tool, or its JSON as a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, Protocol, TypeAlias, TypeVar

from langchain_core.messages import AIMessage
from typing_extensions import TypedDict

from agentgraph.agents.spec.forms import AnswerForm, alternatives
from agentgraph.history import calls_of

Form = TypeVar("Form")
_Form = TypeVar("_Form", covariant=True)


class Strategy(Protocol[_Form]):
    """LangChain's `ToolStrategy` or `ProviderStrategy`, known by its `schema`.

    `langchain` is an extra, and may not be installed.
    """

    @property
    def schema(self) -> type[_Form] | UnionType | dict[str, Any]:
        """Return the form, or the union of several."""
        ...


ResponseFormat: TypeAlias = type | UnionType | Mapping[str, Any] | Strategy[Any]
"""A pydantic model, dataclass, `TypedDict` or JSON Schema, a union of them, or a strategy."""


_FENCE = re.compile(r"```(?:json)?[ \t]*\n?(.*?)```", re.DOTALL | re.IGNORECASE)
"""The fence in which a model may write JSON, with words around it."""


class StoredAnswer(TypedDict):
    """An answer as it is stored: JSON values, and the form that they are in."""

    form: str
    value: Any


class OutputFormat:
    """The forms that an answer may have, each of them a tool that the model may call.

    An answer that fits none of them is asked for once more, unless the strategy says otherwise.
    Raises `ValueError` or `TypeError` for what is no `response_format`.
    """

    def __init__(self, response_format: ResponseFormat) -> None:
        is_plain = isinstance(response_format, type | UnionType | Mapping)
        schema = (
            response_format if is_plain else getattr(response_format, "schema", response_format)
        )
        forms = [AnswerForm(kind) for kind in alternatives(schema)]
        self._forms = {form.name: form for form in forms}
        if len(self._forms) < len(forms):
            raise ValueError("each form has to have a name of its own")
        settings = getattr(response_format, "to_model_kwargs", None)
        self.provider_settings: Mapping[str, Any] = {} if settings is None else settings()
        """What asks the provider itself for the form, with a `ProviderStrategy`."""
        self.asks_again: bool = getattr(response_format, "handle_errors", True) is not False
        self.accepted: str = (
            getattr(response_format, "tool_message_content", None)
            or "Answered in the form that was asked for."
        )
        """The text that answers a call with a fitting answer."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools by which the model answers."""
        return tuple(self._forms)

    @property
    def specs(self) -> list[dict[str, Any]]:
        """The tools by which the model answers."""
        return [form.spec for form in self._forms.values()]

    @property
    def request(self) -> str:
        """The request for an answer as a text."""
        schemas = [form.schema for form in self._forms.values()]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        return f"Answer with JSON alone, which fits this schema: {json.dumps(schema)}"

    def of_call(self, name: str, args: object) -> StoredAnswer:
        """Return the answer that a call gives; raises `ValueError` with what does not fit."""
        return {"form": name, "value": self._forms[name].with_defaults(args)}

    def of_text(self, text: str) -> StoredAnswer:
        """Return the answer that a text gives; raises `ValueError` with what does not fit."""
        value = json_in(text)
        problems = []
        for form in self._forms.values():
            try:
                return self.of_call(form.name, value)
            except ValueError as error:
                problems.append(f"{form.name}: {error}")
        raise ValueError("; ".join(problems))

    def answer_of(self, message: AIMessage) -> StoredAnswer | None:
        """Return the answer in a message, None where it calls other tools only.

        Raises `ValueError` with what does not fit.
        """
        calls = [call for call in message.tool_calls if call["name"] in self._forms]
        bad_calls = [c for c in message.invalid_tool_calls if c["name"] in self._forms]
        if not calls and not bad_calls:
            return None if calls_of(message) else self.of_text(str(message.text))
        problems = []
        for call in calls:
            try:
                return self.of_call(call["name"], call["args"])
            except ValueError as error:
                problems.append(f"{call['name']}: {error}")
        problems += [f"{call['name']}: the arguments are not valid JSON" for call in bad_calls]
        raise ValueError("; ".join(problems))

    def text_of(self, message: AIMessage) -> str | None:
        """Return the answer that a message's call gives as JSON, None where no call gives one."""
        try:
            answer = self.answer_of(message)
        except ValueError:
            return None
        return None if answer is None else json.dumps(answer["value"], ensure_ascii=False)

    def fits(self, text: str) -> bool:
        """Tell whether a text is an answer."""
        return self.read(text) is not None

    def read(self, text: str) -> StoredAnswer | None:
        """Return the answer that a text gives, None where it gives none."""
        try:
            return self.of_text(text)
        except ValueError:
            return None

    def load(self, answer: StoredAnswer) -> object:
        """Return the object for a stored answer.

        Raises `ValueError` where the form has changed and the stored values do not fit it.
        """
        form = self._forms.get(answer["form"])
        if form is None:
            raise ValueError(f"the answer has the form {answer['form']!r}, which is not known here")
        return form.load(answer["value"])


def json_in(text: str) -> Any:
    """Return the JSON that a text is, or has in a fence; raises `ValueError` without any."""
    for candidate in (text, *_FENCE.findall(text)):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    raise ValueError("it is a text, and no JSON")
