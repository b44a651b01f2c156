"""Approval rules, which select calls of many tools for approval.

Activities apply the rules when a model makes a call. The resulting policy is recorded with the call.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf
from pydantic.dataclasses import dataclass

from waystation.core import ApprovalPolicy, Effect


def _wrap_name(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _check_function(value: Any) -> Any:
    if value is not None and not callable(value):
        raise ValueError("use a function of the call's arguments, such as `lambda amount: amount > 100`")
    return value


if TYPE_CHECKING:  # the accepted types; the types after validation are below
    Patterns: TypeAlias = str | Sequence[str]
    Effects: TypeAlias = Effect | Sequence[Effect]
else:
    Patterns = Annotated[tuple[str, ...], BeforeValidator(_wrap_name), Field(min_length=1)]
    Effects = Annotated[tuple[Effect, ...], BeforeValidator(_wrap_name), Field(min_length=1)]


@dataclass(frozen=True, config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
class ApprovalRule:
    """Selects calls that need approval. A call matches if it meets all conditions; without conditions, all match.

    A tool runs only after its policy is satisfied. A long-running tool runs at once, and the policy restricts who may
    answer.
    """

    policy: InstanceOf[ApprovalPolicy]
    """Policy for approvers, recorded with the call."""
    _: dataclasses.KW_ONLY
    tools: Patterns | None = None
    """Tool names, or patterns such as `pay*`. None: all tools."""
    effects: Effects | None = None
    """Effect classes of matching calls. A tool without `effect` counts as `repeatable`, with confirmation as `once`."""
    unless_effect: Effects | None = None
    """Excluded effect classes, such as `read`. A tool without `effect` never counts as `read`."""
    when: Annotated[Callable[..., Any] | None, BeforeValidator(_check_function)] = None
    """A function that decides. It receives the arguments that it names; if it raises, the call matches."""
    over: Annotated[Mapping[str, float], Field(min_length=1)] | None = None
    """Limits by argument name. A call matches if one of these arguments is larger or not a number."""

    def names(self, tool: str) -> bool:
        """Whether the rule applies to a tool, by its name."""
        return self.tools is None or any(fnmatchcase(tool, pattern) for pattern in self.tools)

    def is_about(self, effect: Effect) -> bool:
        """Whether the rule applies to calls of an effect class."""
        return (self.effects is None or effect in self.effects) and effect not in (self.unless_effect or ())
