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
    ├── AnswerUnconfirmed         no worker confirmed an answer in time
    │   └── MessageUnconfirmed    no worker confirmed a message to a session in time
    ├── AuthorizationFailed       a login failed, or its token cannot be renewed
    ├── CredentialStoreError      the credential store cannot be read or written
    ├── InvalidConfiguration      a configuration file cannot be used
    ├── IdentityUnavailable       the identity provider is not available; try again
    ├── ModelError                raised by model adapters, handled by the model activity
    │   ├── ModelRefused          the call is not retried
    │   └── ModelOverloaded       the call is retried
    ├── NotJson                   a value cannot be recorded
    │   ├── StateRefused          a value cannot be stored in the state (tools.state)
    │   └── TooLarge              a value is too large to be recorded (tools.outcome)
    ├── InputValidationError      an argument is invalid; named as in ADK
    ├── NotAwaited                an async method of the context was called without `await` (tools.tool_context)
    ├── StoreFailed               artifacts, memories or large payloads are not available
    ├── ScopeNameTooLong          app name and user ID are too long for the workflow ID of their state
    ├── ScopesNotRead             code read `user:` or `app:` state that the invocation had not loaded
    ├── ForeignHistory            a history was not recorded by Waystation, or cannot be read
    ├── NoSuchEvent               a recording has no event with that number
    ├── NoPrompt                  no model was called at that point, and none would be called next
    └── NotReplayable             the current code does not reproduce a history

Messages of InvocationError are recorded and logged, so they are short and never quote the conversation.
"""

from collections.abc import Iterable


class WaystationError(Exception):
    """Base class of all errors in this package."""


class AuthoringError(WaystationError):
    """An agent or a tool is declared incorrectly. The message names the place and the remedy."""


class InvalidAgent(AuthoringError):
    """An agent's declaration is invalid."""

    def __init__(self, agent: str, problem: str) -> None:
        self.agent, self.problem = agent, problem
        super().__init__(f"Agent {agent!r}: {problem}")


class NoAgents(AuthoringError):
    """A folder contains no agents."""

    def __init__(self, folder: str, problem: str) -> None:
        self.folder, self.problem = folder, problem
        super().__init__(f"{folder}: {problem}")


class InvalidTool(AuthoringError):
    """A tool cannot be declared to a model."""

    def __init__(self, tool: str, problem: str) -> None:
        self.tool, self.problem = tool, problem
        super().__init__(f"Tool {tool!r}: {problem}")


class ToolNameTaken(AuthoringError):
    """Two tools of one agent have the same name."""

    def __init__(self, agent: str, tool: str) -> None:
        self.agent, self.tool = agent, tool
        super().__init__(f"Agent {agent!r} has two tools named {tool!r}; rename one of them.")


class AgentNameTaken(AuthoringError):
    """Two agents served by the same worker have the same name."""

    def __init__(self, agent: str, places: Iterable[str]) -> None:
        self.agent, self.places = agent, tuple(places)
        super().__init__(f"Two agents are named {agent!r} ({', '.join(self.places)}); rename one of them.")


class InvocationError(WaystationError):
    """An invocation failed."""


class UnknownAgent(InvocationError):
    """The worker does not serve an agent with this name, or no worker has ever announced one."""

    def __init__(self, agent: str, known: Iterable[str], *, where: str = "This worker serves") -> None:
        self.agent, self.known = agent, tuple(sorted(known))
        super().__init__(f"No agent is named {agent!r}. {where}: {', '.join(self.known) or 'none'}.")


class InvalidInput(InvocationError):
    """The input of an invocation or a session, or a message to a session, is invalid."""


class ModelFailed(InvocationError):
    """The model rejected the request. Another attempt would have the same result."""


class ModelUnavailable(InvocationError):
    """The model did not respond within the allowed number of attempts."""


class EngineFault(InvocationError):
    """An internal Waystation error. The invocation fails instead of getting stuck."""


class AnswerRefused(WaystationError):
    """An answer was refused. Nothing changed."""


class UnknownCall(AnswerRefused):
    """The invocation has no call with this ID that can be answered, or the invocation does not exist."""


class AlreadyAnswered(AnswerRefused):
    """The call is already closed, or this answer, its token or this person's approval has already been counted."""


class Expired(AnswerRefused):
    """The answer arrived after the call's deadline."""


class NotAllowed(AnswerRefused):
    """The sender is not allowed to give this answer, or too many answers are already being verified."""


class DigestMismatch(AnswerRefused):
    """The answer's digest is not the digest of the call, or the policy requires a digest and the answer has none."""


class InvalidAnswer(AnswerRefused):
    """The answer is malformed, or the call does not accept the answer's action or content."""


class SessionRefused(WaystationError):
    """A session refused a message, cannot be started, or does not exist. Nothing changed."""


class SessionBusy(SessionRefused):
    """The session is busy with another message, and this message asked not to be queued."""


class QueueFull(SessionRefused):
    """The session already has too many queued messages."""


class SessionClosed(SessionRefused):
    """The session is closed."""


class SessionExists(SessionRefused):
    """A session with this ID already exists."""


class UnknownSession(SessionRefused):
    """No session has this ID."""


class AnswerUnconfirmed(WaystationError):
    """No worker confirmed the answer in time. It may still be applied later."""

    def __init__(self, invocation: str, function_call_id: str) -> None:
        self.invocation, self.function_call_id = invocation, function_call_id
        super().__init__(
            f"No worker confirmed the answer to call {function_call_id!r} of {invocation!r}. The answer may still be "
            "applied if a worker accepts it before the deadline. List the pending calls before you answer again. A "
            "signal is in time if the server receives it before the deadline."
        )


class MessageUnconfirmed(AnswerUnconfirmed):
    """No worker confirmed the message in time. The message may be lost, or it may still be accepted later."""

    def __init__(self, session: str) -> None:
        self.session = session
        WaystationError.__init__(
            self,
            f"No worker confirmed the message to session {session!r} in time. Start a worker and send the message "
            "again. Use the same `message_id`, so that it counts only once.",
        )


class AuthorizationFailed(WaystationError):
    """A login failed, or a token cannot be renewed. The message contains no secrets and no text from the provider."""

    def __init__(self, message: str, *, revoked: bool = False) -> None:
        self.revoked = revoked
        """Whether a new login is required."""
        super().__init__(message)


class CredentialStoreError(WaystationError):
    """The credential store cannot be read or written. The message names the remedy."""


class InvalidConfiguration(WaystationError):
    """A configuration file or setting cannot be used. The message contains no secrets."""

    def __init__(self, file: object, key: str, problem: str) -> None:
        self.file, self.key, self.problem = str(file), key, problem
        super().__init__(f"{file}{f', {key}' if key else ''}: {problem}")


class IdentityUnavailable(WaystationError):
    """The identity provider is not available. Another attempt may succeed."""


class ModelError(WaystationError):
    """A model call failed."""


class ModelRefused(ModelError):
    """The model service rejected the request and would reject the same request again."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelOverloaded(ModelError):
    """The model service is overloaded, failing or unreachable. Another attempt may succeed."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__(message)


class NotJson(WaystationError):
    """A value cannot be recorded: it has no faithful JSON form or exceeds a limit."""

    def __init__(self, path: str, found: str, remedy: str) -> None:
        self.path, self.found, self.remedy = path, found, remedy
        super().__init__(f"{f'{path!r} is' if path else 'the value is'} {found}, which cannot be recorded; {remedy}.")


class InputValidationError(WaystationError, ValueError):
    """An argument is invalid."""


class StoreFailed(WaystationError):
    """A store for artifacts, memories or large payloads failed."""

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"The store at {place} failed: {problem}")


class ScopeNameTooLong(WaystationError):
    """The app name, or the app name and user ID together, are too long for the workflow ID of the state."""

    def __init__(self, scope_id: str, limit: int) -> None:
        self.size, self.limit = len(scope_id), limit
        super().__init__(
            f"The workflow ID of this state, `{scope_id[:60]}…`, is {self.size} bytes long; at most {limit} are "
            "allowed. It contains the percent-encoded app name and user ID: use shorter names."
        )


class ScopesNotRead(WaystationError):
    """Code read a `user:` or `app:` state key, but the invocation had not loaded this state."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"State {key!r} was not loaded, because the App sets `state_scopes=False`. Set `App(..., "
            "state_scopes=True)`."
        )


class ForeignHistory(WaystationError):
    """A history was not recorded by Waystation, or it cannot be read, for example because the file is too large."""


class NoSuchEvent(WaystationError):
    """A recording has no event with this number. Events are numbered from 1; 0 is the state before the first event."""

    def __init__(self, source: str, number: int, first: int, last: int) -> None:
        self.number, self.first, self.last = number, first, last
        super().__init__(f"{source!r} has no event {number}. The recording has events {first} to {last}.")


class NoPrompt(WaystationError):
    """At this point in a recording, no model was called and none would be called next."""


class NotReplayable(WaystationError):
    """The current code does not reproduce a history."""
