"""How people review calls: how fast they answer, how often they approve, and whether their comments repeat.

The figures come from accounts, so they cover what histories prove. They are about people: show them only to operators.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from waystation.core.actions import ACTIONS
from waystation.core.payload import JsonObject

HASTY_S = 5.0
"""An answer within this time after the person opened the call counts as hasty."""


@dataclass(slots=True)
class ReviewHabit:
    """The answers of one person about the calls of one tool."""

    approver: str
    tool: str
    is_verified: bool = True
    """Whether all of the answers have a verified identity. Otherwise, somebody else may have sent some of them."""
    answers: int = 0
    approvals: int = 0
    hasty: int = 0
    """The answers within `HASTY_S` of the moment the person opened the call."""
    unopened: int = 0
    """The answers without a recorded view. Only the pages of calls with a policy record views."""
    waits_s: list[float] = field(default_factory=list, repr=False)
    comments: Counter[str] = field(default_factory=Counter, repr=False)

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        comment, repeated = self.comments.most_common(1)[0] if self.comments else (None, 0)
        return {
            "approver": self.approver,
            "tool": self.tool,
            "verified": self.is_verified,
            "answers": self.answers,
            "approvals": self.approvals,
            "hasty": self.hasty,
            "unopened": self.unopened,
            "median_wait_s": median(self.waits_s) if self.waits_s else None,
            "most_frequent_comment": comment,
            "repeated": repeated,
        }


class ReviewHabits:
    """Collects the habits of all people from accounts."""

    def __init__(self) -> None:
        self._habits: dict[tuple[str, str], ReviewHabit] = {}

    def add(self, account: Iterable[JsonObject]) -> None:
        """Add the lines of an invocation's account."""
        requested: dict[str, JsonObject] = {}
        opened: dict[tuple[str, str], float] = {}
        for line in account:
            call, kind, at = line.get("call", ""), line["kind"], datetime.fromisoformat(line["time"]).timestamp()
            who = (line.get("verified") or {}).get("subject") or line.get("by")
            if kind == "requested":
                requested[call] = {**line, "at": at}
            elif kind == "viewed" and who:
                opened.setdefault((call, who), at)
            elif kind == "answered" and who and call in requested and ACTIONS[line["action"]].decides:
                self._count(line, who, requested[call], at, opened.get((call, who)))

    def _count(self, line: JsonObject, who: str, requested: JsonObject, at: float, opened_at: float | None) -> None:
        tool = str(requested["tool"])
        habit = self._habits.setdefault((who, tool), ReviewHabit(who, tool))
        habit.answers += 1
        habit.approvals += line["action"] == "approve"
        habit.is_verified = habit.is_verified and "verified" in line
        habit.hasty += opened_at is not None and at - opened_at < HASTY_S
        habit.unopened += opened_at is None
        habit.waits_s.append(at - requested["at"])
        if line.get("comment"):
            habit.comments[str(line["comment"])] += 1

    def list(self) -> list[ReviewHabit]:
        """Return the habits, those with the most answers first."""
        return sorted(self._habits.values(), key=lambda habit: (-habit.answers, habit.approver, habit.tool))
