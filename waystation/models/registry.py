"""Register model classes for model names. Mirrors ADK's `google.adk.models.registry` module."""

from waystation.models.base_llm import BaseLlm
from waystation.models.providers import create_model, load_class, register


class LLMRegistry:
    """The classes that serve models given by name. Registered classes take precedence over Waystation's own."""

    @staticmethod
    def register(llm_cls: type[BaseLlm]) -> None:
        """Register a class for the names that its `supported_models` match.

        Do so in every process that serves the agents, for example in the agents' package.
        """
        for pattern in llm_cls.supported_models():
            register(pattern, llm_cls)

    @staticmethod
    def resolve(model: str) -> type[BaseLlm]:
        """Return the class that serves a model name.

        Raises:
            ValueError: No installed class serves it.
        """
        return load_class(model)

    @staticmethod
    def new_llm(model: str) -> BaseLlm:
        """Return a new instance of the class that serves a model name.

        Raises:
            ValueError: No installed class serves it.
        """
        return create_model(model)
