"""What a reader makes of a history that ends in the middle of a workflow task."""

from tests.unit.core.simulation import Simulation
from waystation.core import Call, Confirmation, InvocationInput, ModelReply, Projection, Scheduled

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
