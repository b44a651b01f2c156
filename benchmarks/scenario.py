"""What floor and engine are both asked to do: the same replies, the same tools, the same number of bytes."""

import json
from dataclasses import asdict, dataclass

SYSTEM = ("You are a careful assistant. " * 8)[:200]
FINAL = "f" * 200


@dataclass(frozen=True, slots=True)
class Scenario:
    """`steps` times a model call that asks for `calls` tool calls at once, then a model call that ends it."""

    steps: int = 1
    calls: int = 1
    size: int = 100
    """Bytes that each tool call returns."""
    tool: str = "lookup"
    """`danger` is carried out after an approval."""

    def text(self) -> str:
        """Return the message that starts an invocation."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "Scenario":
        """Return the scenario that a message describes."""
        return cls(**json.loads(text))


ONE = Scenario()
FIVE = Scenario(calls=5)
APPROVE = Scenario(tool="danger")
