"""The bodies of requests to ADK's routes, with the fields of google-adk 2.13. Names are in camel case or snake case."""

from typing import ClassVar

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from waystation.core.payload import JsonObject
from waystation.web.typed_routes import Body


class AdkBody(Body):
    """The body of a request. Unknown fields are ignored, as ADK's server does: newer clients may send more."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="ignore", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class RunBody(AdkBody):
    """A message for an agent, or responses to calls that wait."""

    app_name: str
    user_id: str
    session_id: str = Field(max_length=900)
    new_message: JsonObject | None = None
    streaming: bool = False
    state_delta: JsonObject | None = None
    invocation_id: str | None = None
    """Without a message: the invocation to follow."""
    custom_metadata: JsonObject | None = None


class CreateBody(AdkBody):
    """A session to create."""

    session_id: str | None = None
    state: JsonObject | None = None
    events: list[JsonObject] | None = None


class StateBody(AdkBody):
    """A change of a session's state."""

    state_delta: JsonObject


class ArtifactBody(AdkBody):
    """A file to save."""

    filename: str = Field(min_length=1, max_length=500)
    artifact: JsonObject
    """A genai Part with text or inline data."""
