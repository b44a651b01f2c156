"""The agents at work in an invocation: which begin, and when they are done.

Composite agents run as ADK's do (adk-semantics 9.2), except that an agent which waits for a person is not done: the
next one of a sequence begins when the answer is there.
"""

import abc
from collections.abc import Iterable
from typing import Any

from waystation.core import ids
from waystation.core.call import CallState
from waystation.core.event import NO_ACTIONS, Event, EventActions
from waystation.core.payload import JsonObject
from waystation.core.scope import writes_scopes
from waystation.core.shape import AgentShape
from waystation.core.state import StateFold
from waystation.core.work import Work


class Works(abc.ABC):
    """Events, state, and the tree of works that brings them about."""

    def __init__(self, invocation_id: str) -> None:
        self.invocation_id = invocation_id
        self.events: list[Event] = []
        """Those since `events_before`."""
        self.events_before = 0
        """How many events precede them; none, unless the log was restored from a snapshot."""
        self.last_said: Event | None = None
        """The latest event with which an agent says something, or fails."""
        self.artifact_delta: dict[str, int] = {}
        self.works: list[Work] = []
        """All that ever began, by their index."""
        self.active: list[Work] = []
        """Those that are not over, in the order in which they began."""
        self.unwanted: set[str] = set()
        """Activities whose results nobody waits for any more."""
        self._state = StateFold({})
        self._llm_agents = 0
        self._next_turn: str | None = None
        self._scope_writes: list[int] = []
        """Numbers of the events that wrote to `user:` or `app:` state."""

    @property
    def state(self) -> JsonObject:
        """The state, `temp:` included. Not to be modified."""
        return self._state.value

    @property
    def changed_keys(self) -> Iterable[str]:
        """Keys of the state that were set or removed since the start."""
        return self._state.changed

    @property
    def event_count(self) -> int:
        """How many events there are."""
        return self.events_before + len(self.events)

    @property
    def over(self) -> bool:
        """Whether every agent is done."""
        return bool(self.works) and self.works[0].over

    def _open_calls(self) -> list[CallState]:
        found: list[CallState] = []
        for work in self.active:
            found.extend(work.open.values())
        return found

    def _emit(
        self,
        now: float,
        work: Work | None,
        content: JsonObject | None,
        actions: EventActions = NO_ACTIONS,
        *,
        author: str | None = None,
        **fields: Any,
    ) -> None:
        """Append an event, of the work's agent unless another author is given."""
        event = Event(
            id=ids.event(self.invocation_id, self.event_count + 1),
            invocation_id=self.invocation_id,
            author=author or (work.agent if work else "user"),
            timestamp=now,
            branch=work.branch if work else None,
            content=content,
            actions=actions,
            **fields,
        )
        self.events.append(event)
        self.artifact_delta.update(actions.artifact_delta)
        # What asks for more budget is nothing that an agent says.
        asks_for_more = any(map(ids.is_budget, event.long_running_tool_ids or ()))
        if event.author != "user" and (event.content or event.error_code) and not asks_for_more:
            self.last_said = event
        if writes_scopes(actions):
            self._scope_writes.append(self.event_count)
        if work and actions.escalate:
            self._escalate(now, work)

    def _begin_work(self, shape: AgentShape, parent: Work | None, branch: str | None) -> Work:
        work = Work(len(self.works), shape, parent, branch, entered_at=self.event_count)
        # Nobody has told yet what the root is; it is entered by an activity in any case.
        work.entered = parent is not None and shape.kind != "llm" and not shape.before
        self.works.append(work)
        self.active.append(work)
        if parent:
            parent.children.append(work)
        if shape.kind == "llm":
            self._llm_agents += 1
        return work

    def _grow(self, now: float) -> None:
        """Begin what is due, and end what is done, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for work in list(self.active):
                if work.over or work.phase_in_flight:
                    continue
                if work.entered and not (work.finished or work.spoken_for) and work.shape.kind != "llm":
                    changed |= self._begin_children(work)
                if work.complete and (work.left or not work.shape.after):
                    work.over = changed = True
            if changed:
                self.active = [work for work in self.active if not work.over]

    def _begin_children(self, work: Work) -> bool:
        """Begin the next of a composite agent's children, or note that there is none; whether anything changed."""
        shape = work.shape
        if shape.kind == "parallel":
            for child in shape.children:
                self._begin_work(child, work, ".".join(filter(None, (work.branch, shape.name, child.name))))
            work.finished = True
            return True
        if not all(child.over for child in work.children):
            return False
        if work.escalated:
            work.finished = True
            return True
        if (work.started == len(shape.children) or not work.rounds) and not self._begin_round(work):
            work.finished = True
            return True
        # Those of earlier rounds are done with, and an endless loop must not keep them.
        work.children = []
        self._begin_work(shape.children[work.started], work, work.branch)
        work.started += 1
        return True

    def _begin_round(self, work: Work) -> bool:
        """Begin a round of a sequence's or loop's children; False when there is none to begin."""
        limit = work.shape.max_iterations if work.shape.kind == "loop" else 1
        # A round in which no model could say anything would be followed by others like it, for ever.
        idle = bool(work.rounds) and work.begun_before_round == self._llm_agents
        if not work.shape.children or idle or (limit is not None and work.rounds >= limit):
            return False
        work.rounds += 1
        work.started = 0
        work.begun_before_round = self._llm_agents
        return True

    def _escalate(self, now: float, work: Work) -> None:
        """End the loops around an agent that escalates, and the siblings of a parallel agent that it is a child of."""
        child, parent = work, work.parent
        while parent:
            if parent.shape.kind == "loop":
                parent.escalated = True
            elif parent.shape.kind == "parallel" and child is work:
                for sibling in parent.children:
                    if sibling is not child:
                        self._stop(now, sibling)
            child, parent = parent, parent.parent

    def _stop(self, now: float, work: Work) -> None:
        """End a work and all that it brought about, with whatever is open in it."""
        for each in work.subtree():
            if each.over:
                continue
            if each.in_flight is not None:
                self.unwanted.add(ids.model_replied(each.in_flight))
            self.unwanted.update(ids.performance(call.id, call.run) for call in each.batch if call.performing)
            each.over = True  # before it is sealed: what its calls still bring about ends with it
            self._seal(now, each)
        self.active = [each for each in self.active if not each.over]

    @abc.abstractmethod
    def _seal(self, now: float, work: Work) -> None:
        """Close whatever is open in a work."""
