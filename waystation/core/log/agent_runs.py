"""Reducers for agent runs: start the agents of a tree, and mark them as ended.

Composite agents run as in ADK 2.13, with one exception: an agent that is waiting for an approver has not ended, so the
next agent in a sequence starts only after the answer.
"""

from waystation.core.contract import AgentSpec, Phase
from waystation.core.log.invocation_state import AgentRun, InvocationState


def begin_run(state: InvocationState, spec: AgentSpec, parent: AgentRun | None, branch: str | None) -> AgentRun:
    """Start an agent run."""
    runs = state.runs
    run = AgentRun(runs.begun, spec, parent.index if parent else None, branch, entered_at=state.event_count)
    # The structure of the root agent is not known until its first activity has returned it.
    run.entered = parent is not None and spec.kind not in ("llm", "custom") and not spec.before
    runs.by_index[run.index] = run
    runs.active.append(run.index)
    runs.begun += 1
    if parent:
        parent.children.append(run.index)
    runs.llm_begun += spec.kind == "llm"
    return run


def is_busy(state: InvocationState, run: AgentRun) -> bool:
    """Return whether a model activity of the run is in flight or a call of its batch is running or due to run."""
    return run.in_flight is not None or any(state.calls[function_call_id].performing for function_call_id in run.batch)


def join_batch(state: InvocationState, run: AgentRun, function_call_id: str) -> None:
    """Add an earlier call to the batch of a run, unless it is in the batch already. The batch stays in call order."""
    joined = {*run.batch, function_call_id}
    run.batch = [known for known in state.calls if known in joined]


def next_phase(state: InvocationState, run: AgentRun) -> Phase | None:
    """Return the phase of the run's next model activity, or None if no activity is due."""
    if run.over or is_busy(state, run):
        return None
    if not run.entered:
        return "enter"
    if _exhausted(state, run):
        return "leave" if run.shape.after and not run.left else None
    if run.shape.kind == "custom":
        return "turn" if all(map(state.runs.is_over, run.children)) else None
    return "turn" if run.unread and _responded(state, run) else None


def subtree(state: InvocationState, run: AgentRun) -> list[AgentRun]:
    """Return a run and all runs below it, children first."""
    below = [state.runs[index] for index in run.children if index in state.runs.by_index]
    return [*(run_below for child in below for run_below in subtree(state, child)), run]


def drop_over(state: InvocationState) -> None:
    """Remove the runs that have ended from the active runs."""
    state.runs.active = [index for index in state.runs.active if not state.runs.is_over(index)]


def advance_runs(state: InvocationState) -> None:
    """Start agents that are due and end finished ones, until nothing changes anymore."""
    changed = True
    while changed:
        changed = False
        for run in state.runs.at_work():
            if run.over or run.phase_in_flight:
                continue
            if run.entered and not (run.finished or run.spoken_for) and run.shape.kind not in ("llm", "custom"):
                changed |= _begin_children(state, run)
            complete = run.entered and not is_busy(state, run) and _exhausted(state, run)
            if complete and (run.left or not run.shape.after):
                run.over = changed = True
        if changed:
            drop_over(state)


def _responded(state: InvocationState, run: AgentRun) -> bool:
    return all(state.calls[function_call_id].responded for function_call_id in run.batch)


def _exhausted(state: InvocationState, run: AgentRun) -> bool:
    """Return whether a run that is not busy has nothing left to do."""
    if not all(map(state.runs.is_over, run.children)):
        return False
    if run.spoken_for:
        return True
    if run.shape.kind != "llm":
        return run.finished
    waits = any(state.calls[function_call_id].waiting for function_call_id in run.open)
    return not (waits or run.unread) and _responded(state, run)


def _begin_children(state: InvocationState, run: AgentRun) -> bool:
    """Start all children of a parallel agent, or the next child of another composite agent.

    If there is no further child, or a child has escalated, mark the agent as finished. Return whether anything changed.
    """
    spec = run.shape
    if spec.kind == "parallel":
        for child in spec.children:
            begin_run(state, child, run, ".".join(filter(None, (run.branch, spec.name, child.name))))
        run.finished = True
        return True
    if not all(map(state.runs.is_over, run.children)):
        return False
    round_done = run.started == len(spec.children) or not run.rounds
    if run.escalated or (round_done and not _begin_round(state, run)):
        run.finished = True
        return True
    # The children of earlier rounds have ended. Drop them, or they would accumulate in an endless loop.
    run.children = []
    begin_run(state, spec.children[run.started], run, run.branch)
    run.started += 1
    return True


def _begin_round(state: InvocationState, run: AgentRun) -> bool:
    """Start a round of a sequence or a loop. Return whether there was a round left to start."""
    limit = run.shape.max_iterations if run.shape.kind == "loop" else 1
    idle = bool(run.rounds) and run.begun_before_round == state.runs.llm_begun
    # Stop after a round that took no activity, because such rounds would repeat forever.
    stuck = idle and not run.shape.repeats
    if not run.shape.children or stuck or (limit is not None and run.rounds >= limit):
        return False
    state.runs.rounds_alone += idle and limit is None
    run.rounds += 1
    run.started = 0
    run.begun_before_round = state.runs.llm_begun
    return True
