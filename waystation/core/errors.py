"""Every error Waystation raises, drawn once.

    WaystationError
    ├── AuthoringError            someone wrote an agent or a tool wrongly; found before anything runs
    │   ├── InvalidAgent
    │   ├── NoAgents
    │   ├── InvalidTool
    │   ├── ToolNameTaken
    │   └── AgentNameTaken
    ├── InvocationError           an invocation fails with it; the class's name is the ApplicationError's type
    │   ├── UnknownAgent
    │   ├── InvalidInput
    │   ├── ModelFailed
    │   ├── ModelUnavailable
    │   └── EngineFault
    ├── AnswerRefused             an answer did not count; the class's name is the update failure's type
    │   ├── UnknownCall
    │   ├── AlreadyAnswered
    │   ├── Expired
    │   ├── NotAllowed
    │   ├── DigestMismatch
    │   └── InvalidAnswer
    ├── SessionRefused            a session did not take a message; the class's name is the update failure's type
    │   ├── SessionBusy
    │   ├── QueueFull
    │   ├── SessionClosed
    │   ├── SessionExists         found by the client
    │   └── UnknownSession        found by the client
    ├── AnswerUnconfirmed         nobody knows yet whether an answer counts
    │   └── MessageUnconfirmed    … or whether a session took a message
    ├── AuthorizationFailed       a login gave no credential, or its token cannot be renewed
    ├── CredentialStoreError      the credential store cannot be read or written
    ├── InvalidConfiguration      a configuration file cannot be used
    ├── IdentityUnavailable       who somebody is cannot be found out now; worth another attempt
    ├── ModelError                raised by model adapters, read by the model activity
    │   ├── ModelRefused          final
    │   └── ModelOverloaded       worth another attempt
    ├── NotJson                   a value cannot be recorded
    │   ├── StateRefused          … in state (tools.state)
    │   └── TooLarge              … because of its size (tools.outcome)
    ├── InputValidationError      a value handed in has a form that cannot be taken; ADK's name
    ├── NotAwaited                a coroutine of the context was used without `await` (tools.awaited)
    ├── StoreFailed               artifacts, memories or large payloads are not reached
    ├── ScopeNameTooLong          the names of an app and a user do not fit into the id of their state
    ├── ScopesNotRead             code read a `user:` or `app:` key of which nobody knew that it would
    ├── ForeignHistory            a history is not one of ours, or cannot be read
    ├── NoSuchEvent               an invocation has no event of that number, or the recording does not go back to it
    ├── NoPrompt                  at some moment no model was asked, nor would one have been
    └── NotReplayable             recorded and present code disagree

Messages of InvocationError end up in histories and logs: they are short and carry no content of the conversation.
"""

from collections.abc import Iterable


class WaystationError(Exception):
    """Base of all errors of this package."""


class AuthoringError(WaystationError):
    """An agent or a tool is declared wrongly; the message says where and how to mend it."""


class InvalidAgent(AuthoringError):
    """An agent's declaration cannot be carried out."""

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
    """An invocation cannot go on."""


class UnknownAgent(InvocationError):
    """No agent of that name is served by the worker that looked for it."""

    def __init__(self, agent: str, known: Iterable[str]) -> None:
        self.agent, self.known = agent, tuple(sorted(known))
        super().__init__(f"No agent is named {agent!r}. This worker serves: {', '.join(self.known) or 'none'}.")


class InvalidInput(InvocationError):
    """The input with which an invocation was started cannot be used."""


class ModelFailed(InvocationError):
    """The model refused the request for good; another attempt would get the same answer."""


class ModelUnavailable(InvocationError):
    """The model did not answer within all attempts."""


class EngineFault(InvocationError):
    """A fault of Waystation itself. The invocation fails instead of being stuck."""


class AnswerRefused(WaystationError):
    """An answer does not count. Nothing changed."""


class UnknownCall(AnswerRefused):
    """No call of that id waits or ever waited in this invocation."""


class AlreadyAnswered(AnswerRefused):
    """The call has its answer; the first one recorded stands."""


class Expired(AnswerRefused):
    """The answer came after the call's deadline."""


class NotAllowed(AnswerRefused):
    """Who answered may not answer this call."""


class DigestMismatch(AnswerRefused):
    """The answer was given for other arguments than the call has."""


class InvalidAnswer(AnswerRefused):
    """The answer is malformed, or its action does not suit the call."""


class SessionRefused(WaystationError):
    """A session did not take what it was sent. Nothing changed."""


class SessionBusy(SessionRefused):
    """The session works on another message, and this one was not to wait."""


class QueueFull(SessionRefused):
    """Too many messages wait in the session already."""


class SessionClosed(SessionRefused):
    """The session takes no further message."""


class SessionExists(SessionRefused):
    """A session that was to be created is there already."""


class UnknownSession(SessionRefused):
    """There is no such session."""


class AnswerUnconfirmed(WaystationError):
    """No worker took the answer in time. It is not lost: it may be applied when one does."""

    def __init__(self, invocation: str, function_call_id: str) -> None:
        self.invocation, self.function_call_id = invocation, function_call_id
        super().__init__(
            f"No worker confirmed the answer to call {function_call_id!r} of {invocation!r}. It may still be applied: "
            "look at what waits before you answer again."
        )


class MessageUnconfirmed(AnswerUnconfirmed):
    """No worker took what a session was sent in time. It may have been lost, or be taken when one does."""

    def __init__(self, session: str) -> None:
        self.session = session
        WaystationError.__init__(
            self,
            f"No worker confirmed in time what the session {session!r} was sent. Start one, and send it again: with "
            "the same `message_id` it counts once.",
        )


class AuthorizationFailed(WaystationError):
    """A login gave no credential, or a token cannot be renewed. The message holds no secret, nor a provider's text."""

    def __init__(self, message: str, *, revoked: bool = False) -> None:
        self.revoked = revoked
        """Whether only a new login helps."""
        super().__init__(message)


class CredentialStoreError(WaystationError):
    """The credential store cannot be read or written; the message says what to change."""


class InvalidConfiguration(WaystationError):
    """A configuration file cannot be used. The message holds nothing secret."""

    def __init__(self, file: object, key: str, problem: str) -> None:
        self.file, self.key, self.problem = str(file), key, problem
        super().__init__(f"{file}{f', {key}' if key else ''}: {problem}")


class IdentityUnavailable(WaystationError):
    """An identity provider cannot be asked now who somebody is; another attempt may succeed."""


class ModelError(WaystationError):
    """A model did not give a reply."""


class ModelRefused(ModelError):
    """The model's service rejected the request; the same request would be rejected again."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelOverloaded(ModelError):
    """The model's service is overloaded, broken or out of reach; another attempt may succeed."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__(message)


class NotJson(WaystationError):
    """A value has no faithful JSON form."""

    def __init__(self, path: str, found: str, remedy: str) -> None:
        self.path, self.found, self.remedy = path, found, remedy
        super().__init__(f"{f'{path!r} is' if path else 'the value is'} {found}, which cannot be recorded; {remedy}.")


class InputValidationError(WaystationError, ValueError):
    """A value handed in has a form that cannot be taken."""


class StoreFailed(WaystationError):
    """The place where artifacts, memories or large payloads are kept did not do what was asked of it."""

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"The store at {place} failed: {problem}")


class ScopeNameTooLong(WaystationError):
    """The names of an app and a user do not fit into the id under which their state is kept."""

    def __init__(self, scope_id: str, limit: int) -> None:
        self.size, self.limit = len(scope_id), limit
        super().__init__(
            f"The state `{scope_id[:60]}…` cannot be kept: app and user, percent-quoted, make an id of {self.size} "
            f"bytes, and at most {limit} are allowed; use shorter names."
        )


class ScopesNotRead(WaystationError):
    """Code read a `user:` or `app:` key, but nothing in its source had told that it would, so none were read."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"State {key!r} was not read: no source of this agent's tools, callbacks and instructions mentions such a "
            "key, or its App says `state_scopes=False`; declare `App(..., state_scopes=True)`."
        )


class ForeignHistory(WaystationError):
    """A history was not recorded by Waystation, or cannot be read."""


class NoSuchEvent(WaystationError):
    """A recording does not hold an event; they are numbered from 1, and 0 is before the first."""

    def __init__(self, source: str, number: int, first: int, last: int) -> None:
        self.number, self.first, self.last = number, first, last
        super().__init__(f"{source!r} has no event {number}: what is recorded there goes from {first} to {last}.")


class NoPrompt(WaystationError):
    """At a moment of a recording no model was asked, nor would one have been next."""


class NotReplayable(WaystationError):
    """The present code would not do what a history recorded."""
