"""All errors that Waystation raises.

    WaystationError
    ├── AuthoringError            an agent or a tool is declared incorrectly; raised before anything runs
    │   ├── InvalidAgent
    │   ├── NoAgents
    │   ├── InvalidTool
    │   ├── ToolNameTaken
    │   └── AgentNameTaken
    ├── InvocationError           an invocation failed; the class name becomes the ApplicationError's type
    │   ├── UnknownAgent
    │   ├── InvalidInput
    │   │   └── UserForgotten     the data of the user is being deleted
    │   ├── ModelFailed
    │   ├── ModelUnavailable
    │   └── EngineFault
    ├── AnswerRefused             an answer did not count; the class name becomes the update failure's type
    │   ├── UnknownCall
    │   ├── AlreadyAnswered
    │   ├── Expired
    │   ├── NotAllowed
    │   ├── DigestMismatch
    │   └── InvalidAnswer
    ├── SessionRefused            a session refused a message; the class name becomes the update failure's type
    │   ├── SessionBusy
    │   ├── QueueFull
    │   ├── SessionClosed
    │   ├── SessionExists         raised by the client
    │   └── UnknownSession        raised by the client
    ├── UnknownInvocation         an invocation does not exist, or its history was deleted; raised by the client
    ├── AnswerUnconfirmed         no worker confirmed an answer in time
    │   └── MessageUnconfirmed    no worker confirmed a message to a session in time
    ├── AuthorizationFailed       a login failed, or its token cannot be renewed
    ├── CredentialStoreError      the credential store cannot be read or written
    ├── InvalidConfiguration      a configuration file cannot be used
    ├── IdentityUnavailable       the identity provider is not available; try again
    ├── ModelError                raised by model adapters, handled by the model activity
    │   ├── ModelRefused          the call is not retried
    │   ├── ModelOverloaded       the call is retried
    │   │   └── RateLimited       the call waits for a rate limit that all workers share
    │   └── BudgetExhausted       the budget of the tenant or the user is used up
    ├── NotJson                   a value cannot be recorded
    │   ├── StateRefused          a value cannot be stored in the state (tools.state)
    │   └── TooLarge              a value is too large to be recorded (tools.outcome)
    ├── InputValidationError      an argument is invalid; named as in ADK
    ├── NotAwaited                an async method of the context was called without `await` (tools.tool_context)
    ├── StoreFailed               artifacts, memories or large payloads are not available
    │   └── KeyMissing            they are encrypted, and the key is missing
    ├── ScopeNameTooLong          app name and user ID are too long for the workflow ID of their state
    ├── ScopesNotRead             code read `user:` or `app:` state that the invocation had not loaded
    ├── ForeignHistory            a history was not recorded by Waystation, or cannot be read
    │   └── DeletedHistory        its content was deleted with the data of its user or tenant
    ├── NoSuchEvent               a recording has no event with that number
    ├── NoPrompt                  no model was called at that point, and none would be called next
    └── NotReplayable             the current code does not reproduce a history

Messages of InvocationError are recorded and logged, so they are short and never quote the conversation.
"""

from collections.abc import Iterable, Sequence
from typing import Any


class WaystationError(Exception):
    """Base class of all errors in this package."""


class AuthoringError(WaystationError):
    """An agent or a tool is declared incorrectly. The message names the place and the remedy.

    Fix the declaration that the message names. `waystation worker check --agents DIR` lists all of them.
    """


class InvalidAgent(AuthoringError):
    """An agent's declaration is invalid.

    Change the setting of the agent that the message names.
    """

    def __init__(self, agent: str, problem: str) -> None:
        self.agent, self.problem = agent, problem
        super().__init__(f"Agent {agent!r}: {problem}")


class NoAgents(AuthoringError):
    """A folder contains no agents.

    Pass a folder whose packages have an `agent.py` with a `root_agent` or an `app`.
    """

    def __init__(self, folder: str, problem: str) -> None:
        self.folder, self.problem = folder, problem
        super().__init__(f"{folder}: {problem}")


class InvalidTool(AuthoringError):
    """A tool cannot be declared to a model.

    Change the function's name, parameters or type hints as the message says.
    """

    def __init__(self, tool: str, problem: str) -> None:
        self.tool, self.problem = tool, problem
        super().__init__(f"Tool {tool!r}: {problem}")


class ToolNameTaken(AuthoringError):
    """Two tools of one agent have the same name.

    Rename one of the tools, or set a `tool_name_prefix` on the toolset.
    """

    def __init__(self, agent: str, tool: str) -> None:
        self.agent, self.tool = agent, tool
        super().__init__(f"Agent {agent!r} has two tools named {tool!r}; rename one of them.")


class AgentNameTaken(AuthoringError):
    """Two agents served by the same worker have the same name.

    Rename one of the agents, or serve them with workers on different task queues.
    """

    def __init__(self, agent: str, places: Iterable[str]) -> None:
        self.agent, self.places = agent, tuple(places)
        super().__init__(f"Two agents are named {agent!r} ({', '.join(self.places)}); rename one of them.")


class InvocationError(WaystationError):
    """An invocation failed.

    Look at the events before the failure with `waystation debug ID`. To continue from one of them, fork the invocation.
    """


class UnknownAgent(InvocationError):
    """The worker does not serve an agent with this name, or no worker has ever announced one.

    Check the name, or start a worker that serves the agent. `waystation workers` lists the workers.
    """

    def __init__(self, agent: str, known: Iterable[str], *, where: str = "This worker serves") -> None:
        self.agent, self.known = agent, tuple(sorted(known))
        super().__init__(f"No agent is named {agent!r}. {where}: {', '.join(self.known) or 'none'}.")


class InvalidInput(InvocationError):
    """The input of an invocation or a session, or a message to a session, is invalid.

    Change the field of the input, or the message, that the error names.
    """


class UserForgotten(InvalidInput):
    """The data of the user is being deleted, so nothing new is started for them.

    Try again when `waystation forget` has ended. If it was interrupted, run it again.
    """

    def __init__(self, user_id: str) -> None:
        super().__init__(
            f"The data of the user {user_id!r} is being deleted, so nothing is started for them. Try again when "
            "`waystation forget` has ended. If it was interrupted, run it again."
        )


class ModelFailed(InvocationError):
    """The model rejected the request. Another attempt would have the same result.

    Change what the message names: the request, the model's name, or the API key. Then start the invocation again.
    """


class ModelUnavailable(InvocationError):
    """The model did not respond within the allowed number of attempts.

    Check the status of the model service and its quota. A `FallbackModel` uses another model instead.
    """


class EngineFault(InvocationError):
    """An internal Waystation error. The invocation fails instead of getting stuck.

    Report it, with the history redacted by `waystation history ID --redact text`.
    """


class AnswerRefused(WaystationError):
    """An answer was refused. Nothing changed.

    See the class of the error.
    """


class UnknownCall(AnswerRefused):
    """The invocation has no call with this ID that can be answered, or the invocation does not exist.

    Check the ID with `waystation pending`, and the namespace.
    """


class AlreadyAnswered(AnswerRefused):
    """The call is already closed, or this answer, its token or this person's approval has already been counted.

    Nothing. `waystation events ID` shows which answer counted.
    """


class Expired(AnswerRefused):
    """The answer arrived after the call's deadline.

    Nothing can be changed for this call: the model was informed that nobody answered. Set a longer `deadline` in the
    policy for the next one.
    """


class NotAllowed(AnswerRefused):
    """The sender is not allowed to give this answer, or too many answers are already being verified.

    Answer as a person that the policy names, and prove it with a token if the policy requires verified identities. If
    too many answers are being verified, try again later.
    """


class DigestMismatch(AnswerRefused):
    """The answer's digest is not the digest of the call, or the policy requires a digest and the answer has none.

    List the call again, look at its current arguments, and answer with the new digest.
    """


class InvalidAnswer(AnswerRefused):
    """The answer is malformed, or the call does not accept the answer's action or content.

    Send an action that the call accepts, with content that matches its schema. The message names the problem.
    """


class SessionRefused(WaystationError):
    """A session refused a message, cannot be started, or does not exist. Nothing changed.

    See the class of the error.
    """


class SessionBusy(SessionRefused):
    """The session is busy with another message, and this message asked not to be queued.

    Wait until the session's invocation has ended, or send the message with another `when_busy`.
    """


class QueueFull(SessionRefused):
    """The session already has too many queued messages.

    Send the message again after the session has handled some of the queued ones.
    """


class SessionClosed(SessionRefused):
    """The session is closed.

    Start another session.
    """


class SessionExists(SessionRefused):
    """A session with this ID already exists.

    Choose another ID, or send messages to the existing session.
    """


class UnknownSession(SessionRefused):
    """No session has this ID.

    Check the ID, the app, the user and the tenant with `waystation sessions`.
    """


class UnknownInvocation(WaystationError):
    """The server has no invocation with this ID, or no longer has it.

    Check the ID with `waystation list`, and the address and namespace.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"There is no invocation {id!r}. If it existed, its history was deleted after the retention period, or the "
            "server's database was emptied. Check the ID, the server and the namespace."
        )


class AnswerUnconfirmed(WaystationError):
    """No worker confirmed the answer in time. It may still be applied later.

    Check that a worker is running, then list the pending calls. If the call is still pending, answer again, or send the
    answer as a signal, which is in time if the server receives it before the deadline.
    """

    def __init__(self, invocation: str, function_call_id: str) -> None:
        self.invocation, self.function_call_id = invocation, function_call_id
        super().__init__(
            f"No worker has confirmed the answer to call {function_call_id!r} of {invocation!r}. It may still be "
            "applied, so check the call before you answer again."
        )


class MessageUnconfirmed(AnswerUnconfirmed):
    """No worker confirmed the message in time. The message may be lost, or it may still be accepted later.

    Start a worker, and send the message again with the same `message_id`, so that it counts only once.
    """

    def __init__(self, session: str) -> None:
        self.session = session
        WaystationError.__init__(
            self,
            f"No worker confirmed the message to session {session!r} in time. Start a worker and send the message "
            "again. Use the same `message_id`, so that it counts only once.",
        )


class AuthorizationFailed(WaystationError):
    """A login failed, or a token cannot be renewed. The message contains no secrets and no text from the provider.

    Log in again if `revoked` is true. Otherwise, check the client ID, the secret and the redirect URL.
    """

    def __init__(self, message: str, *, revoked: bool = False) -> None:
        self.revoked = revoked
        """Whether a new login is required."""
        super().__init__(message)


class CredentialStoreError(WaystationError):
    """The credential store cannot be read or written. The message names the remedy.

    Check the place and the key of the credential store.
    """


class InvalidConfiguration(WaystationError):
    """A configuration file or setting cannot be used. The message contains no secrets.

    Change the key of the file that the message names.
    """

    def __init__(self, file: object, key: str, problem: str) -> None:
        self.file, self.key, self.problem = str(file), key, problem
        super().__init__(f"{file}{f', {key}' if key else ''}: {problem}")


class IdentityUnavailable(WaystationError):
    """The identity provider is not available. Another attempt may succeed.

    Send the answer again later. If the error persists, check the network and the `issuer` in the identity file.
    """


class ModelError(WaystationError):
    """A model call failed.

    Raised by model adapters. Callers see `ModelFailed` or `ModelUnavailable` instead.
    """


class ModelRefused(ModelError):
    """The model service rejected the request and would reject the same request again.

    Raise it in a model adapter for a request that must not be retried. Callers see `ModelFailed`.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelOverloaded(ModelError):
    """The model service is overloaded, failing or unreachable. Another attempt may succeed.

    Raise it in a model adapter for a call that should be retried. Callers see `ModelUnavailable` after the last
    attempt.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__(message)


class RateLimited(ModelOverloaded):
    """The model was not called yet, because a rate limit that all workers share does not allow it now.

    Nothing: the call is retried by itself. If this happens often, raise the limit in the quotas file, if the provider
    allows it.
    """

    def __init__(self, model: str, retry_after_s: float) -> None:
        message = f"The model {model!r} was not called yet: its rate limit, which all workers share, is reached."
        super().__init__(message, status=429, retry_after_s=retry_after_s)


class BudgetExhausted(ModelError):
    """The model was not called, because a budget of the tenant or the user is used up. The message says until when.

    Wait for the next period, or raise the budget in the quotas file.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        """The number of seconds until the period of the budget ends."""
        self.is_held = True
        """Whether the call is held instead of failing. False if the invocation has not called any model yet."""
        super().__init__(message)


class NotJson(WaystationError):
    """A value cannot be recorded: it has no faithful JSON form or exceeds a limit.

    Record what the message suggests, for example a string instead of an object.
    """

    def __init__(self, path: str, found: str, remedy: str, *, replaceable: bool = True) -> None:
        self.path, self.found, self.remedy = path, found, remedy
        self.replaceable = replaceable
        """Whether `repair_json` may replace the value, so that the values around it can be recorded."""
        super().__init__(f"{f'{path!r} is' if path else 'the value is'} {found}, which cannot be recorded; {remedy}.")


class InputValidationError(WaystationError, ValueError):
    """An argument is invalid.

    Pass an argument of the type and form that the message names.
    """


class StoreFailed(WaystationError):
    """A store for artifacts, memories or large payloads failed.

    Check that the store is reachable and writable, and that all workers use the same one.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"The store at {place} failed: {problem}")


class KeyMissing(StoreFailed):
    """Data is encrypted with a key that this process does not have.

    Give the process the keys that the workers have: `WAYSTATION_ENCRYPTION_KEYS`.
    """

    def __init__(self, problem: str) -> None:
        super().__init__("", problem)
        self.args = (f"Encrypted data cannot be read: {problem}",)


class ScopeNameTooLong(WaystationError):
    """The app name, or the app name and user ID together, are too long for the workflow ID of the state.

    Use a shorter app name or user ID.
    """

    def __init__(self, scope_id: str, limit: int) -> None:
        self.size, self.limit = len(scope_id), limit
        super().__init__(
            f"The workflow ID of this state, `{scope_id[:60]}…`, is {self.size} bytes long; at most {limit} are "
            "allowed. It contains the percent-encoded app name and user ID: use shorter names."
        )


class ScopesNotRead(WaystationError):
    """Code read a `user:` or `app:` state key, but the invocation had not loaded this state.

    Set `state_scopes=True` on the `App`.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"State {key!r} was not loaded, because the App sets `state_scopes=False`. Set `App(..., "
            "state_scopes=True)`."
        )


class ForeignHistory(WaystationError):
    """A history was not recorded by Waystation, or it cannot be read, for example because the file is too large.

    Pass the ID or the file of an invocation or session. A file is written by `waystation history`.
    """


class DeletedHistory(ForeignHistory):
    """The content of a history was deleted: its encryption key was deleted with the data of its user or tenant.

    Nothing can restore it. `waystation events` lists the kinds and times of the history events.
    """

    def __init__(self, name: str, events: Sequence[dict[str, Any]]) -> None:
        self.events = events
        """The history events that are left, without content: `event_id`, `time`, `kind` and `name`."""
        cause = "its encryption key was deleted with the data of its user or tenant"
        super().__init__(f"The content of {name} is [deleted]: {cause}. {len(events)} history events are left.")


class NoSuchEvent(WaystationError):
    """A recording has no event with this number. Events are numbered from 1; 0 is the state before the first event.

    Choose a number from the list that `waystation events` prints.
    """

    def __init__(self, source: str, number: int, first: int, last: int) -> None:
        self.number, self.first, self.last = number, first, last
        super().__init__(f"{source!r} has no event {number}. The recording has events {first} to {last}.")


class NoPrompt(WaystationError):
    """At this point in a recording, no model was called and none would be called next.

    Choose an event at which a model was called.
    """


class NotReplayable(WaystationError):
    """The current code does not reproduce a history.

    Undo the change of workflow code, or make it with a patch. `waystation replay` shows the first difference. Changes
    of agents and tools cannot cause this.
    """
