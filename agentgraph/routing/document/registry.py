"""The registry: the classes of conditions and targets that a stored graph may name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from agentgraph.errors import ConfigurationError
from agentgraph.routing import composites, conditions, questions, targets

Kind = TypeVar("Kind", bound=type)
Model = TypeVar("Model")

_CONDITIONS: tuple[type, ...] = (
    conditions.Always,
    conditions.FromSpeaker,
    conditions.ToolCalled,
    conditions.ContextEquals,
    conditions.ContextIn,
    conditions.ContextThreshold,
    conditions.ContextBelow,
    conditions.InPhase,
    conditions.IntentIn,
    conditions.FromSource,
    conditions.FromChannelType,
    conditions.FromActiveAgent,
    conditions.HasActiveAgent,
    conditions.IsAddressed,
    conditions.TurnIs,
    questions.ModelCondition,
    composites.AllOf,
    composites.AnyOf,
    composites.Not,
)
_TARGETS: tuple[type, ...] = (
    targets.AgentTarget,
    targets.RoundRobinTarget,
    targets.StayTarget,
    targets.RevertToInitiatorTarget,
    targets.HumanTarget,
    targets.ActiveAgentTarget,
    targets.AddressedTarget,
    targets.ParallelTarget,
    targets.PhaseTarget,
    targets.TerminateTarget,
    questions.ModelChoice,
)


def _name_of(kind: Any) -> str:
    name: str = kind.name
    return name


def _seal(kind: type) -> None:
    """Refuse classes derived from a built-in one.

    The rules match built-in classes by type, with `case AgentTarget(…)`: a derived class would be
    treated as its base class, and its overrides would be ignored.
    """

    def refuse(cls: Any, /, **_: object) -> None:
        raise ConfigurationError(
            f"{cls.__name__} derives from {kind.__name__}, which is final: "
            "derive from Composable, or from nothing, and give it a name of its own"
        )

    kind.__init_subclass__ = classmethod(refuse)  # type: ignore[assignment]


for _kind in (*_CONDITIONS, *_TARGETS):
    _seal(_kind)


class Registry:
    """Classes of conditions and targets by name: the built-in ones, and those that you register.

    A registry of your own may replace built-in classes; the default registry may not. Pass it to
    `TransitionGraph.from_dict` or `loads`, to decide which classes a document may name:

        registry = Registry()
        registry.register_condition(Mentions)
        graph = TransitionGraph.loads(text, registry)
    """

    def __init__(self, *, may_replace: bool = True) -> None:
        self._may_replace = may_replace
        self._conditions = {_name_of(kind): kind for kind in _CONDITIONS}
        self._targets = {_name_of(kind): kind for kind in _TARGETS}
        self._models: dict[str, object] = {}

    @property
    def conditions(self) -> Mapping[str, Any]:
        """The conditions by name."""
        return self._conditions

    @property
    def targets(self) -> Mapping[str, Any]:
        """The targets by name."""
        return self._targets

    @property
    def models(self) -> Mapping[str, object]:
        """The models by name."""
        return self._models

    def register_model(self, name: str, model: Model) -> Model:
        """Add a chat model, for rules that name it; a second one of the name replaces it."""
        if not isinstance(name, str) or not name or ":" in name:
            raise ConfigurationError(f"name={name!r}: give a name without a colon")
        if not callable(getattr(model, "ainvoke", None)):
            raise ConfigurationError(f"{model!r} is no chat model")
        self._models[name] = model
        return model

    def register_condition(self, kind: Kind) -> Kind:
        """Add a class of conditions under its `name`; works as a decorator."""
        self._add(self._conditions, kind, "evaluate", _CONDITIONS)
        return kind

    def register_target(self, kind: Kind) -> Kind:
        """Add a class of targets under its `name`; works as a decorator."""
        self._add(self._targets, kind, "resolve", _TARGETS)
        return kind

    def _add(
        self, classes: dict[str, Any], kind: type, method: str, built_in: tuple[type, ...]
    ) -> None:
        """Register a class.

        A second class of the same name replaces the first one: notebooks run their cells again.
        """
        name = getattr(kind, "name", None)
        faults = []
        if not isinstance(kind, type) or not callable(getattr(kind, method, None)):
            faults.append(f"{kind!r} has no method {method!r}: register a class that has")
        if not isinstance(name, str) or not name:
            faults.append(f"{kind!r} has no name: give its class a string as `name`")
        elif not self._may_replace and name in {_name_of(own) for own in built_in}:
            faults.append(f"{name!r} is built in: choose another name, or a Registry of your own")
        if faults:
            raise ConfigurationError(faults)
        classes[str(name)] = kind


_default = Registry(may_replace=False)


def default_registry() -> Registry:
    """Return the default registry, to which `register_condition` and `register_target` add."""
    return _default


def register_condition(kind: Kind) -> Kind:
    """Let stored graphs name a class of conditions; works as a decorator.

    Give the class a unique `name`: stored graphs contain it. The fields of the class are its
    arguments. Import its module before you load such a graph. Raises `ConfigurationError` if `name`
    or `evaluate` is missing, or `name` is a built-in one.

        @register_condition
        @dataclass(frozen=True)
        class Mentions(Composable):
            word: str
            name: ClassVar[str] = "mentions"

            def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
                return self.word in envelope.event_data.get("body", "")
    """
    return _default.register_condition(kind)


def register_target(kind: Kind) -> Kind:
    """Let stored graphs name a class of targets; a decorator, like `register_condition`."""
    return _default.register_target(kind)


def register_model(name: str, model: Model) -> Model:
    """Let rules name a chat model, in `ModelChoice` and `ModelCondition`; return the model.

    Stored graphs contain the name: register the model before you open a store that has such rules.

        register_model("judge", ChatOpenAI(model="gpt-5-mini", temperature=0))
    """
    return _default.register_model(name, model)
