"""Generate random invocations: models, tools and people act in any order."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.unit.core.simulation import Simulation
from waystation.core import ids
from waystation.core.approval import ApprovalPolicy, Escalation, Verification, Verified
from waystation.core.budget import Budget, Spent, Usage
from waystation.core.contract import (
    AgentSpec,
    Call,
    CallbackResult,
    Compaction,
    Confirmation,
    EventActions,
    InvocationInput,
    InvocationResult,
    ModelReply,
    ToolConfirmation,
    ToolOutcome,
)
from waystation.core.conversation import ConversationView, prompt
from waystation.core.log import (
    AgentRun,
    CallModel,
    Failure,
    NoticeReport,
    VerificationRef,
    call_id_of,
    parse_ref,
    question_of,
)
from waystation.core.payload import JsonObject

KINDS = ["function", "function", "quick", "long_running", "gated", "answered", "agent", "transfer"]
REQUESTS: list[Callable[[str], dict[str, Any]]] = [
    lambda ref: {},
    lambda ref: {},
    lambda ref: {},
    lambda ref: {"requested_tool_confirmations": {ref: ToolConfirmation(hint="sure?")}},
    lambda ref: {"requested_auth_configs": {ref: {"credentialKey": "key"}}},
]


def _composite(children: st.SearchStrategy[AgentSpec]) -> st.SearchStrategy[AgentSpec]:
    return st.builds(
        AgentSpec,
        name=st.sampled_from(["seq", "par", "loop"]),
        kind=st.sampled_from(["sequential", "parallel", "loop"]),
        children=st.lists(children, max_size=3).map(tuple),
        max_iterations=st.sampled_from([0, 1, 2, None]),
        before=st.booleans(),
        after=st.booleans(),
    )


SHAPES = st.recursive(st.builds(AgentSpec, name=st.sampled_from("pqr"), after=st.booleans()), _composite, max_leaves=4)
SUMMARY: JsonObject = {"role": "model", "parts": [{"text": "what happened"}]}
BUDGETS = st.builds(
    Budget,
    max_llm_calls=st.sampled_from([3, 6, 500]),
    max_total_tokens=st.sampled_from([None, None, 40]),
    max_tool_calls=st.sampled_from([None, None, 0, 3]),
    max_wall_s=st.sampled_from([None, None, 30.0]),
    on_exhausted=st.sampled_from([None, "stop", "wrap_up", "ask"]),
)
MAX_TOKENS = 20
"""The maximum number of tokens that one reply uses."""
BY_THE_WAY: JsonObject = {"role": "model", "parts": [{"text": "by the way"}]}
ACTIONS = ["approve", "approve", "reject", "edit", "respond", "progress", "nonsense"]
AROUND = ["claim", "release", "view", "waive", "cancel"]
PEOPLE = ["alice", "bob", "carol", "user"]
SEALED = "eyJlbmMiOiJBMjU2R0NNIn0..aXY.Y2lwaGVy.dGFn"
"""A value with the form of an encrypted token."""
POLICIES = st.builds(
    ApprovalPolicy,
    approvers=st.sampled_from([(), ("alice", "role:boss"), ("bob",)]),
    not_requester=st.booleans(),
    quorum=st.sampled_from([1, 1, 2, 3]),
    verified=st.sampled_from([None, True]),
    deadline=st.sampled_from([None, 90.0]),
    reminders=st.sampled_from([(), (30.0, 60.0)]),
    escalation=st.sampled_from([(), (Escalation(after=45.0, to=("carol",), notify=("bosses",)),)]),  # type: ignore[arg-type]
    on_expiry=st.sampled_from(["reject", "reject", "reject", "fail"]),
    comment=st.booleans(),
    digest=st.sampled_from([False, False, True]),
    remember=st.sampled_from([None, 100.0]),
    operators=st.just(("carol",)),
    notify=st.sampled_from([(), ("desk",)]),
)


class Story:
    """Draw random events and apply them to a simulated invocation."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        budget = self.draw(BUDGETS)
        self.shape = self.draw(st.one_of(st.just(AgentSpec(name="ag")), SHAPES))
        self.simulation = Simulation(InvocationInput(agent="ag", message="go", state={"s": 0}, budget=budget))
        self.simulation.run_locally = self._run_locally
        self.compacted: list[list[JsonObject]] = []
        """The prompts from which summaries were made."""

    def play(self) -> Simulation:
        """Play about forty moves, then answer everything until the invocation ends or can only wait."""
        simulation = self.simulation
        simulation.task()
        for _ in range(self.draw(st.integers(5, 40))):
            if simulation.finished:
                break
            self._move()
        if not simulation.finished:
            simulation.task()
        return simulation

    def _move(self) -> None:
        simulation = self.simulation
        simulation.now += self.draw(st.sampled_from([0.0, 0.1, 40.0]))
        moves = ["task", "task", "answer", "update", "junk", "timer"]
        if simulation.in_flight:
            moves += ["result"] * 4
        if self.draw(st.integers(0, 5)) == 0:
            simulation.cut(inline=self.draw(st.booleans()))
        if self.draw(st.integers(0, 60)) == 0 and not simulation.cancel_asked:
            moves = ["cancel"]
        match self.draw(st.sampled_from(moves)):
            case "task":
                simulation.task()
            case "answer":
                simulation.answer(**self._answer())
            case "update":
                simulation.update(**self._answer())
            case "junk":
                simulation.signal(self.draw(st.sampled_from(["answer", "other"])), self.draw(st.binary(max_size=8)))
            case "timer":
                simulation.fire_timer()
            case "cancel":
                simulation.cancel()
            case "result":
                self._result(self.draw(st.sampled_from(sorted(simulation.in_flight))))

    def _answer(self) -> JsonObject:
        waiting = [call.id for call in self.simulation.log.state.waiting()]
        known = [*self.simulation.log.state.calls, *waiting, "fc-99"]
        answer: dict[str, Any] = {
            "function_call_id": self.draw(st.sampled_from(known)),
            "action": self.draw(st.sampled_from(ACTIONS)),
            "response": self.draw(st.sampled_from([{"r": 1}, {"max_total_tokens": 30}, None])),
            "args": {"edited": True},
            "wake": self.draw(st.booleans()),
        }
        if self.draw(st.booleans()):
            self._by_somebody(answer)
        if self.draw(st.booleans()):
            answer["answer_id"] = self.draw(st.sampled_from(["a", "b"]))
        if self.draw(st.integers(0, 5)) == 0:
            answer["digest"] = "wrong"
        return answer

    def _by_somebody(self, answer: dict[str, Any]) -> None:
        answer["action"] = self.draw(st.sampled_from([*ACTIONS, *AROUND]))
        answer["by"] = self.draw(st.sampled_from(PEOPLE))
        answer["comment"] = self.draw(st.sampled_from([None, "fine"]))
        answer["remember"] = self.draw(st.booleans()) and answer["action"] == "approve"
        answer["token"] = self.draw(st.sampled_from([None, SEALED, SEALED, "readable"]))
        if self.draw(st.booleans()) and (call := self.simulation.log.state.calls.get(answer["function_call_id"])):
            answer["digest"] = call.digest
            answer["question"] = self.draw(st.sampled_from([None, question_of(call), 1]))

    def _review(self, ref: VerificationRef) -> Verification:
        """Verify the answer as a named approver, or refuse it."""
        answer = self.simulation.log.state.approvals.submitted[str(ref.message)]
        if self.draw(st.integers(0, 5)) == 0:
            return Verification(refused="NotAllowed", message="no such person")
        question = self.simulation.questions[str(ref.message)]
        who = Verified(subject=answer.by or "alice", roles=self.draw(st.sampled_from([(), ("boss",)])))
        nonce = self.draw(st.sampled_from([None, "once", "twice"]))
        verified: dict[str, Any] = {"who": who, "nonce": nonce} if answer.token else {}
        return Verification(question=question, **verified)

    def _result(self, ref: str) -> None:
        simulation = self.simulation
        if simulation.in_flight[ref] in ("review", "notice"):
            lost = self.draw(st.integers(0, 12)) == 0
            if lost:
                simulation.lose(ref, Failure(kind="start_to_close"))
            elif isinstance(verification := parse_ref(ref), VerificationRef):
                simulation.verification_returns(ref, self._review(verification))
            else:
                failed = self.draw(st.sampled_from([{}, {"desk": "Timeout"}]))
                simulation.notification_returns(ref, NoticeReport(delivered=("desk",), failed=failed))
            return
        lost = self.draw(st.integers(0, 12)) == 0
        if simulation.in_flight[ref] == "model":
            if lost:
                simulation.lose(ref, Failure(kind="error", error_type="ModelFailed", message="no"))
            else:
                simulation.reply(ref, self._reply(simulation.asked[ref]))
        elif lost:
            simulation.lose(ref, Failure(kind="heartbeat"))
        elif simulation.in_flight[ref] == "child":
            delta = {self.draw(st.sampled_from("ab")): self.draw(st.integers(0, 9))}
            share = simulation.log.state.budget_use.shares[ref].budget
            tokens = self.draw(st.integers(0, min(MAX_TOKENS, share.max_total_tokens or MAX_TOKENS)))
            tools = self.draw(st.integers(0, 2 if share.max_tool_calls is None else share.max_tool_calls))
            spent = Spent(model_calls=1, total_tokens=tokens, tool_calls=tools, working_s=1.0)
            simulation.child_returns(ref, InvocationResult(text="done", state_delta=delta, spent=spent))
        else:
            call_id = call_id_of(ref)
            long_running = simulation.log.state.calls[call_id].call.kind == "long_running"
            simulation.tool_returns(ref, self._outcome(call_id, long_running))

    def _reply(self, requests: CallModel) -> ModelReply:
        work = self.simulation.log.state.runs[requests.turn]
        remark = CallbackResult(content=BY_THE_WAY)
        remark = remark.model_copy(update={"actions": self.draw(st.sampled_from([None, EventActions(escalate=True)]))})
        if requests.phase == "leave":
            return ModelReply(after=self.draw(st.sampled_from([None, remark])))
        if requests.phase == "enter":
            shape = self.shape if work.index == 0 else work.shape
            if self.draw(st.integers(0, 9)) == 0:
                return ModelReply(before=remark, skipped=True)
            if shape.kind != "llm":
                return ModelReply(shape=shape, before=self.draw(st.sampled_from([None, remark])))
            reply = self._said(work)
            return reply.model_copy(update={"shape": self.draw(st.sampled_from([None, AgentSpec(name=shape.name)]))})
        return self._said(work)

    def _said(self, work: AgentRun) -> ModelReply:
        kinds = self.draw(st.lists(st.sampled_from(KINDS), max_size=4))
        calls, parts = [], []
        for number, kind in enumerate(kinds, work.calls_made + 1):
            call_id = ids.function_call(number, work.index)
            parts.append({"functionCall": {"id": call_id, "name": "tool", "args": {"n": number}}})
            match kind:
                case "gated":
                    asks = Confirmation(hint="ok?")
                    calls.append(Call(id=call_id, confirmation=asks, deadline_s=100, **self._bound()))
                case "answered":
                    calls.append(Call(id=call_id, kind="answered", response={"error": "unknown"}))
                case "transfer":
                    handed: JsonObject = {
                        "actions": EventActions(transfer_to_agent="other"),
                        "transfer": self.draw(SHAPES),
                    }
                    calls.append(Call(id=call_id, kind="answered", response={"result": None}, **handed))
                case "long_running":
                    model_id = f"model-{call_id}"
                    calls.append(
                        Call(id=call_id, kind="long_running", deadline_s=100, model_id=model_id, **self._bound())
                    )
                case "quick":
                    calls.append(Call(id=call_id, quick=True))
                case "agent":
                    calls.append(Call(id=call_id, kind="agent", agent="helper", after=self.draw(st.booleans())))
                case _:
                    calls.append(Call(id=call_id))
        closing = (
            CallbackResult(content={"role": "model", "parts": [{"text": "{}"}]}) if kinds == ["answered"] else None
        )
        content: JsonObject = {"role": "model", "parts": parts or [{"text": "hm"}]}
        usage = Usage(total_tokens=self.draw(st.integers(0, MAX_TOKENS)))
        reply: dict[str, Any] = {"content": content, "calls": tuple(calls), "closing": closing}
        reply["notify"] = self.draw(st.sampled_from([(), (), ("default",)]))
        return ModelReply(**reply, compaction=self._compaction(work), usage=usage, attempt=1)

    def _run_locally(self, refs: list[str]) -> list[tuple[str, float, ToolOutcome | None]]:
        """Complete local activities in any order, some with a failure."""
        return [
            (ref, self.draw(st.sampled_from([0.1, 0.2])), self.draw(st.sampled_from([None, outcome, outcome])))
            for ref in self.draw(st.permutations(refs))
            for outcome in [self._outcome(ref, long_running=False)]
        ]

    def _bound(self) -> dict[str, Any]:
        """Return the policy fields of a recorded call, or nothing, as in older histories."""
        if self.draw(st.booleans()):
            return {}
        return {"approval": self.draw(st.one_of(st.none(), POLICIES)), "declared": "schema"}

    def _compaction(self, work: AgentRun) -> Compaction | None:
        """Summarize as the activity does before the model call; the log may have grown since the call was scheduled."""
        log = self.simulation.whole
        retention = self.draw(st.sampled_from([None, 0, 1, 3]))
        chosen = None if retention is None else ConversationView.of(log, work).over_threshold(retention)
        if chosen is None:
            return None
        made = chosen.compaction(content=SUMMARY)
        summary = made.event("inv", work.branch)
        self.compacted.append(prompt.contents(log, agent=work.agent, branch=work.branch, summary=summary))
        return made

    def _outcome(self, ref: str, long_running: bool) -> ToolOutcome:
        value = self.draw(st.integers(0, 9))
        actions = EventActions(
            state_delta={self.draw(st.sampled_from("ab")): value},
            removed_keys=self.draw(st.sampled_from([(), ("s",)])),
            skip_summarization=self.draw(st.sampled_from([None, None, True])),
            escalate=self.draw(st.sampled_from([None, None, None, True])),
            transfer_to_agent=self.draw(st.sampled_from([None] * 7 + ["other"])),
            **self.draw(st.sampled_from(REQUESTS))(ref),
        )
        if long_running:
            response = self.draw(st.sampled_from([None, {"status": "pending"}]))
            return ToolOutcome(function_call_id=ref, response=response, final=False, actions=actions)
        return ToolOutcome(function_call_id=ref, response={"v": value}, actions=actions)
