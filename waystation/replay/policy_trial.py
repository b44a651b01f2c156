"""Try the approval policies of the agents in this checkout on recorded calls, without a server, model or tool.

Author code that decides about calls runs on the recorded arguments and the state before the call.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from statistics import median

from waystation.activities import Contexts
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.toolbox import tools_of
from waystation.apps.registry import Registry
from waystation.core import ids
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import Confirmation
from waystation.core.conversation import Conversation
from waystation.core.errors import UnknownAgent
from waystation.core.log import CallState, Log
from waystation.core.payload import JsonObject
from waystation.replay.history_logs import UnreadableHistory
from waystation.tools import collect_failures
from waystation.tools.approval import RequiredApproval, find_required_approval

LIMIT_S = 1.0
"""How long the author code for one call may take."""
MAX_LINKS = 20
"""Number of calls that the report lists for each finding."""
OBJECTIONS = ("reject", "edit", "expired")
"""The decisions of people that speak against letting a call run without asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCall:
    """A recorded call, and what the policies of this checkout would have done with it."""

    id: str
    """The approval ID."""
    agent: str
    tool: str
    args: JsonObject
    asked: bool
    """Whether a person was asked before the call ran."""
    asks: bool
    """Whether a person would be asked now."""
    rule: str = ""
    """The rule that asks now, or the tool's own setting. Empty if nothing does."""
    shadows: tuple[str, ...] = ()
    """The rules in shadow mode that match now, and those that matched when the call was recorded."""
    elsewhere: bool = False
    """Whether other people would be asked than were."""
    decision: str = ""
    """The deciding action, `expired`, `open`, or empty if nobody was asked."""
    waited_s: float | None = None
    """How long the call waited for its decision, in seconds."""
    failures: tuple[str, ...] = ()
    """The types of the errors that author code raised, or `TimeoutError` if it did not end. The call then asks."""
    untried: str = ""
    """Why the call could not be tried, or an empty string."""

    @property
    def is_let_through(self) -> bool:
        """Whether a call that people did not simply approve would now run without asking."""
        return not self.asks and not self.untried and self.decision in OBJECTIONS


@dataclass(slots=True)
class RuleReport:
    """The calls about which one rule would have asked."""

    calls: int = 0
    new: int = 0
    """Those that ran without asking."""
    elsewhere: int = 0
    """Those about which other people were asked."""
    decisions: Counter[str] = field(default_factory=Counter)
    """The decisions of people about those that they were asked about."""
    failures: Counter[str] = field(default_factory=Counter)
    """How often author code raised an error, by its type, or did not end."""
    waits_s: list[float] = field(default_factory=list, repr=False)
    links: list[str] = field(default_factory=list)
    """Approval IDs of calls that people rejected or edited, or nobody answered, up to `MAX_LINKS`."""

    def add(self, call: TriedCall) -> None:
        """Count a call."""
        self.calls += 1
        self.new += call.asks and not call.asked
        self.elsewhere += call.elsewhere
        self.failures.update(call.failures)
        if call.decision:
            self.decisions[call.decision] += 1
        if call.waited_s is not None:
            self.waits_s.append(call.waited_s)
        if call.decision in OBJECTIONS and len(self.links) < MAX_LINKS:
            self.links.append(call.id)

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        return {
            "calls": self.calls,
            "new": self.new,
            "elsewhere": self.elsewhere,
            "decisions": dict(self.decisions),
            "failures": dict(self.failures),
            "median_wait_s": median(self.waits_s) if self.waits_s else None,
            "links": self.links,
        }


@dataclass(slots=True)
class TrialReport:
    """The result of a trial."""

    histories: int = 0
    calls: int = 0
    asked: int = 0
    asks: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    """The histories that could not be read, by the type of the error."""
    problems: list[str] = field(default_factory=list)
    """Sentences about the first of them, up to `MAX_LINKS`."""
    untried: Counter[str] = field(default_factory=Counter)
    """The calls that could not be tried, by reason."""
    rules: dict[str, RuleReport] = field(default_factory=dict)
    shadows: dict[str, RuleReport] = field(default_factory=dict)
    let_through: RuleReport = field(default_factory=RuleReport)
    """The calls about which people were asked, and which would now run without asking."""

    def add(self, call: TriedCall) -> None:
        """Count a call."""
        self.calls += 1
        self.asked += call.asked
        if call.untried:
            self.untried[call.untried] += 1
            return
        self.asks += call.asks
        if call.asks:
            self.rules.setdefault(f"{call.agent}: {call.rule}", RuleReport()).add(call)
        elif call.asked:
            self.let_through.add(call)
        for name in call.shadows:
            self.shadows.setdefault(f"{call.agent}: {name}", RuleReport()).add(call)

    def add_unreadable(self, history: UnreadableHistory) -> None:
        """Count a history that could not be read."""
        self.unreadable[history.reason] += 1
        if len(self.problems) < MAX_LINKS:
            self.problems.append(f"{history.source}: {history.problem}")

    @property
    def failures(self) -> int:
        """How often author code failed."""
        return sum(report.failures.total() for report in self.rules.values())

    @property
    def passes(self) -> bool:
        """Whether all calls were tried, no author code failed, and nothing is let through that people objected to."""
        objections = sum(self.let_through.decisions[name] for name in OBJECTIONS)
        return not (self.unreadable or self.untried or self.failures or objections)

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        return {
            "passes": self.passes,
            "histories": self.histories,
            "calls": self.calls,
            "asked": self.asked,
            "asks": self.asks,
            "unreadable": dict(self.unreadable),
            "problems": self.problems,
            "untried": dict(self.untried),
            "rules": {name: report.to_json() for name, report in self.rules.items()},
            "shadows": {name: report.to_json() for name, report in self.shadows.items()},
            "let_through": self.let_through.to_json(),
        }


class PolicyTrial:
    """Tries the policies of some agents."""

    def __init__(self, registry: Registry, *, limit_s: float = LIMIT_S) -> None:
        self._registry, self._limit_s = registry, limit_s
        self._hung: set[tuple[str, str]] = set()
        """The agents and tools whose author code did not end. It is not called again, because it may still run."""

    async def try_log(self, log: Log) -> AsyncIterator[TriedCall]:
        """Yield the calls of an invocation, in order. `log` must be complete."""
        replayed, seen = Log(log.invocation_id), set[str]()
        for entry in log.entries:
            replayed.append(entry.ref, entry.time, entry.body)
            if len(replayed.state.calls) > len(seen):
                for id, call in list(replayed.state.calls.items()):
                    if id not in seen:
                        seen.add(id)
                        if call.call.kind in ("function", "long_running"):
                            yield await self._try(replayed, call, log.state.calls.get(id, call))

    async def _try(self, log: Log, call: CallState, final: CallState) -> TriedCall:
        """Try a call as it was when the model made it. `final` is the same call at the end of the log."""
        decision, waited_s = _read_decision(final)
        about: JsonObject = {"id": ids.approval(log.invocation_id, call.id), "agent": call.agent, "tool": call.name}
        about |= {"args": call.args, "asked": bool(decision), "decision": decision, "waited_s": waited_s}
        try:
            required, failures = await self._judge(log, call)
        except LookupError as error:
            return TriedCall(**about, asks=False, untried=str(error.args[0]))
        asks = required.confirmation is not None or call.call.kind == "long_running"
        return TriedCall(
            **about,
            asks=asks,
            rule=(required.rule.label if required.rule else f"{call.name} itself") if asks else "",
            shadows=tuple(dict.fromkeys((*(rule.label for rule in required.shadows), *call.call.shadows))),
            elsewhere=asks and bool(decision) and _list_asked(call.call.approval) != _list_asked(required.policy),
            failures=failures,
        )

    async def _judge(self, log: Log, call: CallState) -> tuple[RequiredApproval, tuple[str, ...]]:
        """Return the approval that a call needs now, and the types of the errors of author code.

        Raises:
            LookupError: The call cannot be tried. The message is the reason.
        """
        try:
            root, agent = self._registry.find(log.state.root, call.agent)
        except UnknownAgent:
            raise LookupError("the agent is not in these folders") from None
        tool = tools_of(agent).get(call.name)
        if not isinstance(agent, LlmAgent) or tool is None:
            is_listed = (call.call.tool_origin or "").startswith("toolset:")
            raise LookupError("its tool is one of a toolset" if is_listed else "its agent no longer has the tool")
        if (place := (call.agent, call.name)) in self._hung:
            raise LookupError("author code for its tool did not end before")
        contexts = Contexts.of(Conversation(log), log.state.runs[call.turn], scopes_read=root.state_scopes)
        context = contexts.proposed(call.id, call.name)
        with collect_failures() as failures:
            try:
                async with asyncio.timeout(self._limit_s):
                    required = await find_required_approval(tool, call.args, context, root.rules_of(agent))
            except TimeoutError:
                self._hung.add(place)
                return RequiredApproval(Confirmation(hint="")), ("TimeoutError",)
        return required, tuple(failures)


def _read_decision(call: CallState) -> tuple[str, float | None]:
    """Return what people decided about a call, and how long it waited. Empty if the policies did not ask anybody."""
    by_people = call.call.kind == "long_running" and call.call.machine_policy is None
    if call.call.confirmation is None and not by_people:
        return "", None
    if call.call.standing:
        return "remembered", None
    waited_s = call.answered_at - call.requested_at if call.answered_at and call.requested_at else None
    if call.expired:
        return "expired", None
    if call.edited_by or call.requested is not None:
        return "edit", waited_s
    return (call.answer.action, waited_s) if call.answer else ("open", None)


def _list_asked(policy: ApprovalPolicy | None) -> tuple[frozenset[str], int]:
    return (frozenset(policy.approvers), policy.quorum) if policy else (frozenset(), 1)
