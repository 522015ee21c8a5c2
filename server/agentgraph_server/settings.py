"""The settings of a server: from arguments, the environment, and `agentgraph.toml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from agentgraph.errors import ConfigurationError

ENV_KEYS = "AGENTGRAPH_API_KEYS"

Texts = Annotated[tuple[str, ...], NoDecode]
"""A list of texts; a text of the environment is split at commas."""


class Settings(BaseSettings):
    """The settings of a server.

        settings = Settings(store="sqlite:///agents.db", cors_origins=["https://example.com"])
        app = create_app(support, settings=settings)

    What is not given is read from `AGENTGRAPH_<FIELD>` in the environment, else from
    `agentgraph.toml` in the working directory. Raises `ConfigurationError` with every fault.
    """

    model_config = SettingsConfigDict(
        env_prefix="AGENTGRAPH_", toml_file="agentgraph.toml", extra="forbid", frozen=True
    )

    store: str | None = Field(
        default=None, description="memory, sqlite:///file.db or postgresql://…"
    )
    engine: str | None = Field(
        default=None, description="Who drives sessions: local, the default, is this server."
    )
    api_keys: Texts = Field(
        default=(),
        repr=False,
        description="Keys, each a principal of its own in the tenant `default`.",
    )
    keys_file: str | None = Field(
        default=None, description="A file of keys with names, which `agentgraph keys` writes."
    )
    jwt_issuer: str | None = Field(
        default=None, description="Whose tokens are good: the `iss` of an OpenID Connect provider."
    )
    jwt_audience: Texts = Field(default=(), description="For whom they are: one of these in `aud`.")
    jwt_keys: str | None = Field(
        default=None,
        description="The file or address of the issuer's public keys; by default it is discovered.",
    )
    jwt_algorithms: Texts = Field(
        default=("RS256", "PS256", "ES256", "ES384", "Ed25519"),
        description="The algorithms that tokens may be signed by.",
    )
    jwt_name_claim: str = Field(default="sub", description="The claim that names the principal.")
    jwt_tenant_claim: str | None = Field(
        default=None, description="The claim with its tenant; without one all are in `default`."
    )
    jwt_scopes_claim: str | None = Field(
        default=None, description="The claim with its scopes; without one run, read and decide."
    )
    jwt_participant_claim: str | None = Field(
        default=None, description="The claim with its name in sessions; by default its name."
    )
    runs_at_once: int | None = Field(
        default=None, ge=1, description="The most runs of a principal at once, in each process."
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="The most requests of a principal, in each process."
    )
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="The most tokens of a principal's runs, in each process."
    )
    cors_origins: Texts = Field(default=(), description="Origins whose pages may ask; `*` is any.")
    allowed_hosts: Texts = Field(
        default=(), description="Host names to answer to; without any, all."
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        description="The address at which clients reach the server, for links and `Location`.",
    )
    webhook_hosts: Texts = Field(
        default=(),
        description="Hosts that webhooks may be at, also private ones; without any, all whose "
        "addresses are public.",
    )
    max_body: int = Field(
        default=33_554_432, ge=1, description="The most bytes that a request may have."
    )
    expose_errors: bool = Field(
        default=False, description="Whether clients see the texts of tools' and models' errors."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe messages that are logged."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="How they are written: lines to read, or each one as JSON."
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Without the values: one of them may be a key, or a URL with a password.
            raise ConfigurationError(
                [
                    f"{'.'.join(map(str, fault['loc']))}: {_words_of(fault)}"
                    for fault in error.errors()
                ],
                code="settings",
            ) from None

    @property
    def knows_principals(self) -> bool:
        """Whether requests have to say who sends them."""
        return bool(self.api_keys or self.keys_file or self.jwt_issuer)

    @field_validator(
        "api_keys",
        "cors_origins",
        "allowed_hosts",
        "webhook_hosts",
        "jwt_audience",
        "jwt_algorithms",
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        """Split a text at commas: a text is an iterable of letters, which are no keys."""
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Iterable):
            return parts
        texts = [part.strip() if isinstance(part, str) else part for part in parts]
        return tuple(text for text in texts if text != "")

    @field_validator("public_url")
    @classmethod
    def _without_slash(cls, value: str | None) -> str | None:
        return value and value.rstrip("/")

    @field_validator("api_keys", mode="before")
    @classmethod
    def _check_keys(cls, value: object) -> object:
        """Refuse a value without a key: the server would be open."""
        keys = cls._split(value)
        if keys == () != value:
            raise ValueError(f"{ENV_KEYS} holds no key: write one, or unset it")
        return keys

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of values, the first of which wins."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def _words_of(fault: Mapping[str, Any]) -> str:
    return str(fault["msg"]).removeprefix("Value error, ")
