"""What people do to the calls that wait for them: take them on, approve them, have them run otherwise, close them.

Whether they may has been decided before, see `approval`.
"""

from collections.abc import Collection

from waystation.core import responses
from waystation.core.answer import Answer
from waystation.core.call import CallState
from waystation.core.calls import Calls, credential_key
from waystation.core.entry import Failure
from waystation.core.notice import Occasion
from waystation.core.occasions import Due, due
from waystation.core.payload import JsonObject
from waystation.core.policy import Notice, StandingApproval, Verified
from waystation.core.standing import kept, standing_approval


class Answered(Calls):
    """Calls, and what people answered."""

    def __init__(self, invocation_id: str) -> None:
        super().__init__(invocation_id)
        self.submitted: dict[str, Answer] = {}
        """Answers that are being looked into, by their references."""
        self.standing: tuple[StandingApproval, ...] = ()
        """Approvals that hold for further calls, those given to called agents included."""
        self.occasions: list[Due] = []
        """Of what people are to be told, until whoever has them told clears it."""

    def _answer(self, now: float, call: CallState, answer: Answer, who: Verified | None = None) -> None:
        work = self.works[call.turn]
        name = who.subject if who else answer.by
        if answer.answer_id:
            call.answer_ids[answer.answer_id] = None
        match answer.action:
            case "view":
                call.viewed_by[name or ""] = None
                return
            case "claim" | "release":
                call.claimed_by = name if answer.action == "claim" else None
                self._note(now, call, answer, who)
                return
            case "approve" | "edit" if call.approvals_needed > 1:
                # Whoever changes the arguments is the first to approve the changed call.
                if answer.action == "edit":
                    call.args, call.approved_by = dict(answer.args or {}), {}
                call.approved_by[name or ""] = None
                if len(call.approved_by) < call.approvals_needed:
                    self._note(now, call, answer, who)
                    return
        if answer.action != "progress":
            call.decided_by = who
            self._occasion(call, "decided")
        if who or answer.action in ("waive", "cancel"):
            self._note(now, call, answer, who)
        if answer.remember and (standing := standing_approval(self.invocation_id, call, name or "", now)):
            self.standing = kept(self.standing, [standing])
        if answer.action == "cancel":
            call.answer, call.answered_at = answer, now
            self._refuse(call, responses.withdrawn(answer))
        elif call.gate == "waiting":
            self._answer_request(now, call, answer)
        else:
            call.response = responses.answered(answer)
            if answer.action != "progress":
                call.answer, call.answered_at, call.closed = answer, now, True
            if answer.action != "progress" or answer.wake:
                call.responded = work.unread = True
            work.held.append(("user", [call.response_part(call.response)]))
        self._settle(now, work)

    def _occasion(self, call: CallState, occasion: Occasion, notice: Notice | None = None) -> None:
        found = due(call, occasion, self.notify, notice) if call.told == call.waits else None
        if found:
            self.occasions.append(found)

    def _tell_who_is_asked(self) -> None:
        """Have people told of calls that have begun to wait."""
        for call in self._open_calls():
            if call.waiting and call.told < call.waits:
                call.told = call.waits
                self._occasion(call, "asked")

    def _note(self, now: float, call: CallState, answer: Answer, who: Verified | None) -> None:
        """Tell readers what somebody did that no response of the call tells."""
        said: JsonObject = {
            "function_call_id": call.id,
            "action": answer.action,
            "by": who.subject if who else answer.by,
        }
        if who:
            said["verified"] = who.model_dump(mode="json", exclude_defaults=True)
        if call.approvals_needed > 1 and answer.action in ("approve", "edit"):
            said |= {"approved_by": [*call.approved_by], "needed": call.approvals_needed}
        if answer.comment:
            said["comment"] = answer.comment
        self._emit(now, None, None, custom_metadata={"approval": said})

    def in_force(self, origins: Collection[str]) -> list[StandingApproval]:
        """Return the standing approvals of such origins."""
        return [each for each in self.standing if each.origin in origins]

    def _answer_request(self, now: float, call: CallState, answer: Answer) -> None:
        work = self.works[call.turn]
        call.answer, call.answered_at = answer, now
        part = call.request_response_part(answer)
        self._emit(now, work, {"role": "user", "parts": [part]}, author="user")
        if answer.action == "reject" and not (call.dynamic and call.asked == "confirmation"):
            self._refuse(call, responses.rejected(answer))
            return
        if answer.action == "edit":
            call.shown, call.args = call.args, dict(answer.args or {})
        call.gate = "passed"
        if not call.dynamic:
            return
        for waiting in self._asking_for_the_same(call):
            waiting.gate = "passed"
            waiting.run_again()
            other = self.works[waiting.turn]
            if waiting not in other.batch:
                other.batch.append(waiting)

    def _asking_for_the_same(self, call: CallState) -> list[CallState]:
        """Return the call, and the others that wait for the same credential: one login is enough."""
        key = credential_key(call)
        same = [c for c in self._open_calls() if c is not call and c.gate == "waiting" and credential_key(c) == key]
        return [call, *same] if key else [call]

    def _expire(self, now: float, call: CallState) -> None:
        call.expired = True
        self._occasion(call, "expired")
        if call.policy and call.policy.on_expiry == "fail":
            text = f"Nobody answered the call of {call.name!r} before its deadline."
            self.failure = Failure(kind="error", error_type="Expired", message=text)
        self._refuse(call, responses.expired(call))
        self._settle(now, self.works[call.turn])
