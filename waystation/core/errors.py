"""All errors that Waystation raises.

    WaystationError
    ├── AuthoringError            an agent or a tool is declared wrongly; found before anything runs
    │   ├── InvalidAgent
    │   ├── NoAgents
    │   ├── InvalidTool
    │   ├── ToolNameTaken
    │   └── AgentNameTaken
    ├── InvocationError           an invocation failed; the class name is the ApplicationError's type
    │   ├── UnknownAgent
    │   ├── InvalidInput
    │   ├── ModelFailed
    │   ├── ModelUnavailable
    │   └── EngineFault
    ├── AnswerRefused             an answer did not count; the class name is the update failure's type
    │   ├── UnknownCall
    │   ├── AlreadyAnswered
    │   ├── Expired
    │   ├── NotAllowed
    │   ├── DigestMismatch
    │   └── InvalidAnswer
    ├── SessionRefused            a session refused a message; the class name is the update failure's type
    │   ├── SessionBusy
    │   ├── QueueFull
    │   ├── SessionClosed
    │   ├── SessionExists         raised by the client
    │   └── UnknownSession        raised by the client
    ├── AnswerUnconfirmed         no worker has confirmed an answer yet
    │   └── MessageUnconfirmed    … or a message to a session
    ├── AuthorizationFailed       a login failed, or its token cannot be renewed
    ├── CredentialStoreError      the credential store cannot be read or written
    ├── InvalidConfiguration      a configuration file cannot be used
    ├── IdentityUnavailable       the identity provider is not available; try again
    ├── ModelError                raised by model adapters, handled by the model activity
    │   ├── ModelRefused          final
    │   └── ModelOverloaded       retried
    ├── NotJson                   a value cannot be recorded
    │   ├── StateRefused          … in state (tools.state)
    │   └── TooLarge              … because of its size (tools.outcome)
    ├── InputValidationError      an argument is invalid; ADK's name
    ├── NotAwaited                a coroutine of the context was used without `await` (tools.awaited)
    ├── StoreFailed               artifacts, memories or large payloads are not available
    ├── ScopeNameTooLong          app and user id are too long for the id of their state
    ├── ScopesNotRead             `user:` or `app:` state was read but not loaded for the invocation
    ├── ForeignHistory            a history is not Waystation's, or cannot be read
    ├── NoSuchEvent               a recording has no event of that number
    ├── NoPrompt                  no model was called, or would be called next, at that point
    └── NotReplayable             the current code does not reproduce a history

Messages of InvocationError are recorded and logged: they are short and repeat no content of the conversation.
"""

from collections.abc import Iterable


class WaystationError(Exception):
    """Base of all errors of this package."""


class AuthoringError(WaystationError):
    """An agent or a tool is declared wrongly; the message names the place and the remedy."""


class InvalidAgent(AuthoringError):
    """An agent's declaration is invalid."""

    def __init__(self, agent: str, problem: str) -> None:
        self.agent, self.problem = agent, problem
        super().__init__(f"Agent {agent!r}: {problem}")


class NoAgents(AuthoringError):
    """A folder has no agents."""

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
    """Two agents that one worker serves have the same name."""

    def __init__(self, agent: str, places: Iterable[str]) -> None:
        self.agent, self.places = agent, tuple(places)
        super().__init__(f"Two agents are named {agent!r} ({', '.join(self.places)}); rename one of them.")


class InvocationError(WaystationError):
    """An invocation failed."""


class UnknownAgent(InvocationError):
    """The worker serves no agent of that name."""

    def __init__(self, agent: str, known: Iterable[str]) -> None:
        self.agent, self.known = agent, tuple(sorted(known))
        super().__init__(f"No agent is named {agent!r}. This worker serves: {', '.join(self.known) or 'none'}.")


class InvalidInput(InvocationError):
    """The input of an invocation, a session or a message is invalid."""


class ModelFailed(InvocationError):
    """The model rejected the request; another attempt would get the same result."""


class ModelUnavailable(InvocationError):
    """The model did not answer within all attempts."""


class EngineFault(InvocationError):
    """An internal error of Waystation. The invocation fails instead of blocking."""


class AnswerRefused(WaystationError):
    """An answer was refused. Nothing changed."""


class UnknownCall(AnswerRefused):
    """The invocation has no pending call of that id and never had one."""


class AlreadyAnswered(AnswerRefused):
    """The call was answered before; the first recorded answer counts."""


class Expired(AnswerRefused):
    """The answer came after the call's deadline."""


class NotAllowed(AnswerRefused):
    """The sender is not allowed to give this answer."""


class DigestMismatch(AnswerRefused):
    """The answer was given for other arguments than the call's."""


class InvalidAnswer(AnswerRefused):
    """The answer is malformed, or its action does not suit the call."""


class SessionRefused(WaystationError):
    """A session refused a message. Nothing changed."""


class SessionBusy(SessionRefused):
    """The session is busy with another message, and this one asked not to queue."""


class QueueFull(SessionRefused):
    """Too many messages wait in the session already."""


class SessionClosed(SessionRefused):
    """The session is closed."""


class SessionExists(SessionRefused):
    """A session with this id exists already."""


class UnknownSession(SessionRefused):
    """No session has this id."""


class AnswerUnconfirmed(WaystationError):
    """No worker confirmed the answer in time. It may still be applied later."""

    def __init__(self, invocation: str, function_call_id: str) -> None:
        self.invocation, self.function_call_id = invocation, function_call_id
        super().__init__(
            f"No worker confirmed the answer to call {function_call_id!r} of {invocation!r}. It may still be applied: "
            "list the pending calls before you answer again."
        )


class MessageUnconfirmed(AnswerUnconfirmed):
    """No worker confirmed the message in time. It may be lost, or still be accepted later."""

    def __init__(self, session: str) -> None:
        self.session = session
        WaystationError.__init__(
            self,
            f"No worker confirmed the message to session {session!r} in time. Start a worker and send the message "
            "again: with the same `message_id` it counts once.",
        )


class AuthorizationFailed(WaystationError):
    """A login failed, or a token cannot be renewed. The message contains no secret and no text of the provider."""

    def __init__(self, message: str, *, revoked: bool = False) -> None:
        self.revoked = revoked
        """Whether a new login is required."""
        super().__init__(message)


class CredentialStoreError(WaystationError):
    """The credential store cannot be read or written; the message names the remedy."""


class InvalidConfiguration(WaystationError):
    """A configuration file is invalid. The message contains no secrets."""

    def __init__(self, file: object, key: str, problem: str) -> None:
        self.file, self.key, self.problem = str(file), key, problem
        super().__init__(f"{file}{f', {key}' if key else ''}: {problem}")


class IdentityUnavailable(WaystationError):
    """The identity provider is not available; another attempt may succeed."""


class ModelError(WaystationError):
    """A model call failed."""


class ModelRefused(ModelError):
    """The model service rejected the request; it would reject the same request again."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelOverloaded(ModelError):
    """The model service is overloaded, failing or unreachable; another attempt may succeed."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__(message)


class NotJson(WaystationError):
    """A value cannot be represented as JSON without loss."""

    def __init__(self, path: str, found: str, remedy: str) -> None:
        self.path, self.found, self.remedy = path, found, remedy
        super().__init__(f"{f'{path!r} is' if path else 'the value is'} {found}, which cannot be recorded; {remedy}.")


class InputValidationError(WaystationError, ValueError):
    """An argument is invalid."""


class StoreFailed(WaystationError):
    """A store of artifacts, memories or large payloads failed."""

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"The store at {place} failed: {problem}")


class ScopeNameTooLong(WaystationError):
    """App name and user id are too long for the workflow id of their state."""

    def __init__(self, scope_id: str, limit: int) -> None:
        self.size, self.limit = len(scope_id), limit
        super().__init__(
            f"The id `{scope_id[:60]}…` of this state, made of the percent-quoted app and user, has {self.size} bytes; "
            f"at most {limit} are allowed; use shorter names."
        )


class ScopesNotRead(WaystationError):
    """Code read a `user:` or `app:` key, but the invocation had not loaded such state."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"State {key!r} was not read: no source of this agent's tools, callbacks and instructions mentions such a "
            "key, or its App says `state_scopes=False`; declare `App(..., state_scopes=True)`."
        )


class ForeignHistory(WaystationError):
    """A history was not recorded by Waystation, or cannot be read."""


class NoSuchEvent(WaystationError):
    """A recording has no event of this number. Events count from 1; 0 is the state before the first."""

    def __init__(self, source: str, number: int, first: int, last: int) -> None:
        self.number, self.first, self.last = number, first, last
        super().__init__(f"{source!r} has no event {number}. The recording has events {first} to {last}.")


class NoPrompt(WaystationError):
    """At this point of a recording, no model was called or would be called next."""


class NotReplayable(WaystationError):
    """The current code does not reproduce a history."""
