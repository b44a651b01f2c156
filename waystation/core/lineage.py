"""From which moment of which invocation another one goes on."""

from pydantic import Field

from waystation.core.payload import JsonObject, Recorded

MAX_TEXT = 100_000


class Fork(Recorded):
    """What an invocation takes over of another one, and what it does in another way."""

    invocation_id: str = Field(min_length=1, max_length=1_000)
    """Whose events it begins with."""
    event: int = Field(ge=1)
    """The number of the last of them."""
    run_id: str = Field(default="", max_length=100)
    """A run of that invocation; by default the latest."""
    results: dict[str, JsonObject] = Field(default_factory=dict)
    """Responses to calls that are not carried out, by their ids."""
    agent: str | None = Field(default=None, max_length=1_000)
    """Whose `instruction` and `model` are replaced; by default those of the agent that was started."""
    instruction: str | None = Field(default=None, max_length=MAX_TEXT, repr=False)
    model: str | None = Field(default=None, max_length=1_000)
    home: str = Field(default="", max_length=1_000)
    """The invocation under whose id its artifacts are kept, when it belongs to no session; only the engine sets it."""
    entries: int = 0
    """How many entries were taken over; only the engine sets it."""

    def memo(self) -> JsonObject:
        """Return what is to be seen of it from outside."""
        return {"invocation_id": self.invocation_id, "event": self.event}
