"""Which calls a person has to agree to, said of many tools at once.

A rule is a declaration like the agent that has it: activities apply it when a model makes a call, and what came of it,
the policy, is recorded with the call.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf
from pydantic.dataclasses import dataclass

from waystation.core import ApprovalPolicy, Effect


def _several(given: Any) -> Any:
    """Take one name for a list of it."""
    return (given,) if isinstance(given, str) else given


def _function(given: Any) -> Any:
    if given is not None and not callable(given):
        raise ValueError("give a function of the call's arguments, such as `lambda amount: amount > 100`")
    return given


if TYPE_CHECKING:  # what may be written; what it becomes is below
    Patterns: TypeAlias = str | Sequence[str]
    Effects: TypeAlias = Effect | Sequence[Effect]
else:
    Patterns = Annotated[tuple[str, ...], BeforeValidator(_several), Field(min_length=1)]
    Effects = Annotated[tuple[Effect, ...], BeforeValidator(_several), Field(min_length=1)]


@dataclass(frozen=True, config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
class ApprovalRule:
    """Calls that need a person: those of which everything holds that the rule says; of all calls when it says nothing.

    On a long-running tool the policy says who may answer; any other tool does not run before it is satisfied.
    """

    policy: InstanceOf[ApprovalPolicy]
    """Who has to agree, as it is recorded with the call."""
    _: dataclasses.KW_ONLY
    tools: Patterns | None = None
    """Names of tools, or patterns such as `pay*`; None: all tools."""
    effects: Effects | None = None
    """Effect classes of which the call is one. A tool that declares none is `repeatable`, or `once` when its author has
    it confirmed."""
    unless_effect: Effects | None = None
    """Effect classes that are left out, such as `read`. A tool that declares none is never `read`."""
    when: Annotated[Callable[..., Any] | None, BeforeValidator(_function)] = None
    """A function that decides, given those of the call's arguments that it names; one that raises counts as a yes."""
    over: Annotated[Mapping[str, float], Field(min_length=1)] | None = None
    """Amounts: the call has one of these arguments, and it is larger, or is no number."""

    def names(self, tool: str) -> bool:
        """Whether the rule is about a tool of that name."""
        return self.tools is None or any(fnmatchcase(tool, pattern) for pattern in self.tools)

    def is_about(self, effect: Effect) -> bool:
        """Whether the rule is about calls of that effect class."""
        return (self.effects is None or effect in self.effects) and effect not in (self.unless_effect or ())
