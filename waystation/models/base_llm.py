"""The interface of models, which take a request and either return a response or raise a `ModelError`."""

import abc
import copy
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from waystation.models.adk_protocol import generate_as_adk
from waystation.models.llm_response import LlmResponse
from waystation.models.plain_request import LlmRequest

DEFAULT_MODEL = "gemini-3.5-flash"


class BaseLlm(abc.ABC):  # noqa: B024  # subclasses define one of two methods
    """Base class of models. Pass an instance as an agent's `model`, or pass a model name instead.

    Subclasses define `generate`, or ADK's `generate_content_async`. Their annotated attributes are arguments of the
    constructor, as in ADK.
    """

    model: str | None = None
    """The model name. By default, the name in the request."""
    default_model: ClassVar[str] = ""
    """The model name in requests if an agent's model object has no name. Empty for the name of its class."""
    is_service: ClassVar[bool] = False
    """Whether instances call a service, so that `--model demo` replaces them."""
    is_free: ClassVar[bool] = False
    """Whether calls of instances use nothing that a budget or a quota limits."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Create an instance.

        Raises:
            TypeError: The class defines neither method.
        """
        if cls.generate is BaseLlm.generate and not hasattr(cls, "generate_content_async"):
            raise TypeError(f"{cls.__name__} has neither `generate` nor `generate_content_async`. Define one of them.")
        llm = super().__new__(cls)
        for name, annotation in _list_annotations(cls).items():
            default: Any = getattr(cls, name, None)
            is_field = hasattr(default, "get_default")  # pydantic's Field or PrivateAttr
            # As in pydantic, instances do not share a mutable default.
            if is_field or (default.__hash__ is None and "ClassVar" not in str(annotation)):
                make = default.default_factory if is_field else None
                vars(llm)[name] = make() if make else copy.deepcopy(default.default if is_field else default)
        return llm

    def __init__(self, **fields: Any) -> None:
        """Set the annotated attributes.

        Raises:
            TypeError: The class has no such attribute.
        """
        if unknown := sorted(fields.keys() - _list_annotations(type(self)).keys()):
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}. Declare it in the class.")
        for name, value in fields.items():
            setattr(self, name, value)
        getattr(self, "model_post_init", lambda _: None)(None)  # a hook of pydantic, which models for ADK may have

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the model's response. By default, call `generate_content_async`.

        `on_text` may be called with chunks of text as they arrive.

        Raises:
            ModelRefused: The request is invalid, so a retry cannot succeed.
            ModelOverloaded: The call failed, but a retry may succeed.
        """
        return await generate_as_adk(self, request, on_text=on_text)

    @classmethod
    def supported_models(cls) -> list[str]:
        """Return regular expressions that match the model names which `LLMRegistry` assigns to this class."""
        return []

    def account(self) -> tuple[str | None, str | None]:
        """Return the API key and the address of the service, or None for those from the environment.

        Models with the same key and address share their rate limits.
        """
        return None, None

    async def prepare(self) -> None:  # noqa: B027  # most models have nothing to load
        """Load libraries and credentials, so that the next call is sent without delay. Raise nothing: `generate` does.

        Only calls with a rate limit are prepared, before they are counted.
        """

    async def close(self) -> None:  # noqa: B027  # most models have nothing to release
        """Release connections. The worker calls this method once, when it stops."""


def _list_annotations(cls: type[BaseLlm]) -> dict[str, Any]:
    """Return the annotations of a class and its base classes, by attribute."""
    owners = reversed(cls.__mro__)
    return {name: value for owner in owners for name, value in inspect.get_annotations(owner).items()}


def name_of_model(model: str | BaseLlm) -> str:
    """Return the model name to use in requests. For an object without one, it is the class's default or the class."""
    if isinstance(model, str):
        return model
    return str(model.model or model.default_model or type(model).__name__)


@runtime_checkable
class GeneratesContent(Protocol):
    """ADK's protocol, which instances of google-adk's `BaseLlm` and of look-alikes have."""

    generate_content_async: Any


class AdkLlm(BaseLlm):
    """A model object that is not a `BaseLlm` of Waystation but has ADK's protocol."""

    is_service = True

    def __init__(self, llm: GeneratesContent) -> None:
        """Store the model object."""
        self.llm = llm
        self.model = str(getattr(llm, "model", None) or type(llm).__name__)

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the model's response; see `BaseLlm.generate`."""
        return await generate_as_adk(self.llm, request, on_text=on_text)
