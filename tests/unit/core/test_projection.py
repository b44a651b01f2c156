"""A reader can read a history that ends within a workflow task."""

import pytest

from tests.unit.core.simulation import Simulation
from waystation.core.contract import Call, Confirmation, InvocationInput, ModelCallInput, ModelReply, ToolOutcome
from waystation.core.projection import Projection, Scheduled, Started
from waystation.core.projection.facts import Abandoned, CancelAsked, TaskCompleted
from waystation.core.scope_state import ScopeDelivery

MODEL_CALL = ModelCallInput(at=0, new=("start",), agent="ag", root="ag", number=1).encode()
PART = {"functionCall": {"id": "fc-1", "name": "pay", "args": {"amount": 900}}}
PAYS = ModelReply(
    content={"role": "model", "parts": [PART]},
    calls=(Call(id="fc-1", confirmation=Confirmation(hint="Sure?"), declared="schema"),),
)


def test_an_unverified_edit_does_not_count_for_a_reader() -> None:
    """The edit does not count while its update is recorded and the activity that verifies its arguments is not."""
    simulation = Simulation(InvocationInput(agent="ag", message="pay"))
    simulation.task()
    simulation.reply("m1", PAYS)
    simulation.task()
    simulation.update(function_call_id="fc-1", action="edit", args={"amount": "all"})
    simulation.task()
    *read, verification = simulation.facts
    assert isinstance(verification, Scheduled)
    reader = Projection("inv")
    reader.feed(read)
    reader.flush()
    assert [call.args for call in reader.log.state.pending()] == [{"amount": 900}]


def test_a_model_call_cancelled_with_its_invocation_is_read_as_lost() -> None:
    """The workflow counts the call as lost before the server records the end of its activity."""
    started = InvocationInput(agent="ag", message="go", state={"user:name": "Ada"}).encode()
    flush = ScopeDelivery(at=2, new=("cancel", "m1"), after=-1, last=0).encode()
    reader = Projection("inv")
    reader.feed([Started([started]), TaskCompleted(1.0), Scheduled("m1", MODEL_CALL, model=True)])
    reader.feed([CancelAsked(), TaskCompleted(2.0), Abandoned("m1"), Scheduled("d:0", flush, model=False)])
    reader.flush()
    assert [str(entry.ref) for entry in reader.log.entries] == ["start", ">1", "cancel", "m1"]
    assert reader.log.state.models_in_flight == {}


@pytest.mark.parametrize("last", [None, ToolOutcome(function_call_id="fc-3", response={})], ids=["failed", "returned"])
def test_local_activity_results_are_applied_in_call_order(last: ToolOutcome | None) -> None:
    """Results of local activities apply together when the last one ends, in call order, even if one of them failed."""
    simulation = Simulation(InvocationInput(agent="ag", message="look"))
    simulation.run_locally = lambda refs: [
        (refs[2], 0.5, last),
        (refs[1], 0.1, ToolOutcome(function_call_id=refs[1], response={})),
        (refs[0], 0.3, ToolOutcome(function_call_id=refs[0], response={})),
    ]
    ids = ["fc-1", "fc-2", "fc-3", "fc-4"]
    simulation.task()
    simulation.reply(
        "m1",
        ModelReply(
            content={"role": "model", "parts": [{"functionCall": {"id": id, "name": "look"}} for id in ids]},
            calls=tuple(Call(id=id, quick=id != "fc-4") for id in ids),
        ),
    )
    simulation.task()
    reader = Projection("inv")
    reader.feed(simulation.facts)
    reader.flush()
    results = reader.log.entries[3:]
    expected = ["fc-1", "fc-2"] if last is None else ["fc-1", "fc-2", "fc-3"]
    assert [str(entry.ref).partition(".")[0] for entry in results] == expected
    assert {entry.time for entry in results} == {1_000.5}
    assert [call.id for call in reader.log.state.performing()] == [id for id in ids if id not in expected]
