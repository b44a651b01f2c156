"""The work of both sides: the same replies, the same tools, the same number of bytes."""

import json
from dataclasses import asdict, dataclass

SYSTEM = ("You are a careful assistant. " * 8)[:200]
FINAL = "f" * 200


@dataclass(frozen=True, slots=True)
class Scenario:
    """`steps` model calls, each with `calls` parallel tool calls, then a final model call."""

    steps: int = 1
    calls: int = 1
    size: int = 100
    """Bytes that each tool call returns."""
    tool: str = "lookup"
    """`danger` needs an approval."""

    def text(self) -> str:
        """Return the message that starts an invocation."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "Scenario":
        """Parse the scenario from a message."""
        return cls(**json.loads(text))


ONE = Scenario()
FIVE = Scenario(calls=5)
APPROVE = Scenario(tool="danger")
