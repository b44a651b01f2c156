"""Approval rules, which select tool calls that need approval.

Activities apply the rules when the model calls a tool, and the resulting policy is recorded with the call.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf
from pydantic.dataclasses import dataclass

from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import Effect


def _wrap_name(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _check_function(value: Any) -> Any:
    if value is not None and not callable(value):
        raise ValueError("use a function of the call's arguments, such as `lambda amount: amount > 100`")
    return value


if TYPE_CHECKING:  # the types that users may pass; the branch below has the types after validation
    Patterns: TypeAlias = str | Sequence[str]
    Effects: TypeAlias = Effect | Sequence[Effect]
else:
    Patterns = Annotated[tuple[str, ...], BeforeValidator(_wrap_name), Field(min_length=1)]
    Effects = Annotated[tuple[Effect, ...], BeforeValidator(_wrap_name), Field(min_length=1)]


@dataclass(frozen=True, config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
class ApprovalRule:
    """Selects calls that need approval. A call matches if it meets every condition that is set.

    A tool runs only after the policy is satisfied. A long-running tool is the exception: it runs immediately, and the
    policy restricts who may answer the call.
    """

    policy: InstanceOf[ApprovalPolicy]
    """The policy that applies to matching calls. It is recorded with the call."""
    _: dataclasses.KW_ONLY
    tools: Patterns | None = None
    """Tool names, or patterns such as `pay*`. If None, the rule applies to all tools."""
    effects: Effects | None = None
    """Effect classes that match. A tool without `effect` counts as `repeatable`, or as `once` if it requires
    confirmation.
    """
    unless_effect: Effects | None = None
    """Effect classes that do not match, such as `read`. A tool without `effect` never counts as `read`."""
    when: Annotated[Callable[..., Any] | None, BeforeValidator(_check_function)] = None
    """A function that returns whether a call matches. It receives the arguments that it names. If it raises, the call
    matches.
    """
    over: Annotated[Mapping[str, float], Field(min_length=1)] | None = None
    """Limits by argument name. A call matches if it passes any of these arguments with a value that exceeds the limit
    or is not a number.
    """
    name: str | None = None
    """A name for reports. By default, it is made from the conditions."""
    shadow: bool = False
    """Whether the rule is only tried: its matches are recorded with the calls, and nobody is asked."""

    @property
    def label(self) -> str:
        """The name, or the conditions in one line."""
        over = " or ".join(f"{name} over {limit:g}" for name, limit in (self.over or {}).items())
        parts = (
            f"tools {', '.join(self.tools or ())}" if self.tools else "",
            f"effects {', '.join(self.effects or ())}" if self.effects else "",
            f"effects but {', '.join(self.unless_effect or ())}" if self.unless_effect else "",
            over,
            f"when {getattr(self.when, '__name__', 'a function')}" if self.when else "",
        )
        return self.name or "; ".join(filter(None, parts)) or "all calls"

    def names(self, tool: str) -> bool:
        """Return whether the rule applies to a tool with this name."""
        return self.tools is None or any(fnmatchcase(tool, pattern) for pattern in self.tools)

    def is_about(self, effect: Effect) -> bool:
        """Return whether the rule applies to calls with this effect class."""
        return (self.effects is None or effect in self.effects) and effect not in (self.unless_effect or ())
