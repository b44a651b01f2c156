"""What a reader makes of a history that ends in the middle of a workflow task."""

from tests.unit.core.simulation import Simulation
from waystation.core import (
    Abandoned,
    Call,
    CancelAsked,
    Confirmation,
    InvocationInput,
    ModelCallInput,
    ModelReply,
    Projection,
    Scheduled,
    ScopeDelivery,
    Started,
    TaskCompleted,
)

MODEL_CALL = ModelCallInput(at=0, new=("start",), agent="ag", root="ag", number=1).encode()
PART = {"functionCall": {"id": "fc-1", "name": "pay", "args": {"amount": 900}}}
PAYS = ModelReply(
    content={"role": "model", "parts": [PART]},
    calls=(Call(id="fc-1", confirmation=Confirmation(hint="Sure?"), declared="schema"),),
)


def test_an_edit_does_not_count_for_a_reader_before_it_is_verified() -> None:
    """Also when the reader has seen the update, and not yet the activity that verifies its arguments."""
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


def test_a_model_call_that_is_cancelled_with_its_invocation_is_read_as_lost() -> None:
    """The workflow counts it as lost at once, and names it in the next command, before the server knows of its end."""
    started = InvocationInput(agent="ag", message="go", state={"user:name": "Ada"}).encode()
    flush = ScopeDelivery(at=2, new=("cancel", "m1"), after=-1, last=0).encode()
    reader = Projection("inv")
    reader.feed([Started([started]), TaskCompleted(1.0), Scheduled("m1", MODEL_CALL, model=True)])
    reader.feed([CancelAsked(), TaskCompleted(2.0), Abandoned("m1"), Scheduled("d:0", flush, model=False)])
    reader.flush()
    assert [str(entry.ref) for entry in reader.log.entries] == ["start", ">1", "cancel", "m1"]
    assert reader.log.state.models_in_flight == {}
