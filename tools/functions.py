"""Inspect the signature of a user's function, describe its parameters to models, and call the function.

For each function, a single pydantic model both describes and converts the arguments, so the declaration always matches
what the function accepts.
"""

import asyncio
import contextlib
import dataclasses
import dis
import functools
import inspect
import itertools
import re
import sys
import types
import typing
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import Annotated, Any

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from waystation.core.errors import InvalidTool, NotJson
from waystation.core.payload import JsonObject, to_plain_json
from waystation.tools import ToolContext
from waystation.tools.resources import Resource
from waystation.tools.threads import run_in_thread

EMPTY = inspect.Parameter.empty
_GENERATORS = (Generator, AsyncGenerator)
_UNIONS = (typing.Union, types.UnionType)
_CONTEXT_NAME = "tool_context"
_STREAM_NAME = "input_stream"
_CONTEXT_ANNOTATION = re.compile(r"(\w+\.)*(ToolContext|Context|CallbackContext)")
_STATELESS = frozenset(
    {
        "agent_name",
        "function_call_id",
        "idempotency_key",
        "invocation_id",
        "request_confirmation",
        "resources",
        "tool_confirmation",
        "user_id",
    }
)
"""The attributes of a context that a function can use without reading state."""
_SHOWN_ERRORS = 10
"""Maximum number of errors reported to the model per argument. A long list can have an error in every item."""


_LOCALIZED_ARGS = re.compile(r"^(引数|인수|參數|参数)\s*[:\uff1a]\s*$", re.MULTILINE)
"""Matches the heading of the parameters in Japanese, Korean, and traditional or simplified Chinese."""
_LOCALIZED_RETURNS = re.compile(
    r"^(戻り値|반환|반환값|반환 값|傳回|傳回值|回傳|回傳值|返回|返回值)\s*[:\uff1a][ \t]*$", re.MULTILINE
)
"""Matches the heading of the result in these languages."""
_FULL_WIDTH_COLON = re.compile(r"^(\s+\w+(?:\s*[(\uff08][^)\uff09]*[)\uff09])?)\s*\uff1a\s*", re.MULTILINE)
"""Matches a parameter's name, with or without a type, and the full-width colon before its description."""


def name_of(function: Callable[..., Any]) -> str:
    """Return a callable's tool name: its `__name__`, or its class name if it is an instance."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def doc_of(function: Callable[..., Any]) -> str:
    """Return a callable's full docstring without indentation. An instance falls back to its `__call__`."""
    docs = _docs_of(function)
    return docs[0] if docs else ""


def _docs_of(function: Callable[..., Any]) -> list[str]:
    if isinstance(function, functools.partial):
        return _docs_of(function.func)
    holders = [function]
    if not inspect.isroutine(function) and not isinstance(function, type):
        holders = [type(function).__call__] if _has_generated_doc(function) else [function, type(function).__call__]
    return [inspect.cleandoc(doc) for holder in holders if (doc := getattr(holder, "__doc__", None))]


def _has_generated_doc(instance: object) -> bool:
    """Return whether the docstring is the default one that Python generates for a dataclass from its signature."""
    kind = type(instance)
    if not dataclasses.is_dataclass(kind):
        return False
    return bool(kind.__doc__ == kind.__name__ + str(inspect.signature(kind)).replace(" -> None", ""))


def parameter_descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parameter descriptions from the `Args:` section of a Google-style docstring, by name.

    The section's heading can also be Chinese, Japanese or Korean, as in the translations of ADK's documentation.
    """
    descriptions: dict[str, str] = {}
    for doc in reversed(_docs_of(function)):  # `__call__` first: it describes its parameters better than its class does
        try:
            parsed = docstring_parser.parse(_translate_headings(doc), style=docstring_parser.DocstringStyle.GOOGLE)
        except docstring_parser.ParseError:  # not a Google-style docstring
            continue
        for param in parsed.params:
            if param.args[0] == "param" and param.description:
                descriptions.setdefault(param.arg_name, " ".join(param.description.split()))
    return descriptions


def _translate_headings(doc: str) -> str:
    if not _LOCALIZED_ARGS.search(doc):
        return doc
    doc = _LOCALIZED_RETURNS.sub("Returns:", _LOCALIZED_ARGS.sub("Args:", doc))
    return _FULL_WIDTH_COLON.sub(r"\g<1>: ", doc)


def find_bound_names(function: Callable[..., Any] | None) -> set[str]:
    """Return the keyword arguments that partials bind, also inside decorators and as the `__call__` of an object."""
    if function is None:
        return set()
    if isinstance(function, functools.partial):
        return find_bound_names(function.func) | function.keywords.keys()
    call = getattr(function, "__call__", None)  # noqa: B004  # the method is inspected, not called
    return find_bound_names(call if isinstance(call, functools.partial) else getattr(function, "__wrapped__", None))


def _without_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    return (
        functools.partial(_without_wrapper(function.func), *function.args, **function.keywords)
        if isinstance(function, functools.partial)
        else function
    )


class Signature:
    """The parameters of one function.

    Creating a Signature does not raise for a bad function, so all problems with a tool can be reported together.
    `model` raises an error that lists them.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self.problems: list[str] = []
        """The reasons why the function cannot be a tool, one sentence each."""
        self.context: str | None = None
        """Name of the parameter that receives the ToolContext, or None if there is no such parameter."""
        self.resources: dict[str, str] = {}
        """Names of the resources that parameters receive, by the name of the parameter."""
        self.annotations: dict[str, Any] = {}
        """Resolved annotation of each parameter that the model fills in, in order. `Any` if it is not annotated."""
        try:
            # `functools.update_wrapper` gives a partial the signature of its function, with the bound parameters.
            python, bound = inspect.signature(_without_wrapper(function)), find_bound_names(function)
            # Models neither see nor replace what a partial binds, which may be a secret.
            self.python = python.replace(parameters=[p for name, p in python.parameters.items() if name not in bound])
        except (ValueError, TypeError, NameError) as error:
            self.python = inspect.Signature()
            self.problems.append(
                f"its signature cannot be read ({error}); wrap it in a function that declares its parameters."
            )
        self._read_parameters()

    def _read_parameters(self) -> None:
        namespace = namespace_of(self.function)
        unresolved: dict[str, str] = {}
        for parameter in self.python.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            try:
                annotation = resolve_annotation(parameter.annotation, namespace)
            except Exception as error:  # noqa: BLE001  # evaluating an annotation can raise anything
                annotation, unresolved[parameter.name] = parameter.annotation, str(error)
            if self.context is None and _is_context(annotation):
                self.context = parameter.name
            elif resource := _find_resource(annotation):
                self.resources[parameter.name] = resource.name or parameter.name
            else:
                self.annotations[parameter.name] = annotation
        if self.annotations.get("self") is Any and next(iter(self.annotations)) == "self":
            self.problems.append("it is an unbound method; create an instance of the class and use its method.")
        if self.context is None and _CONTEXT_NAME in self.annotations:
            self.context = _CONTEXT_NAME
            del self.annotations[_CONTEXT_NAME]
        if self.annotations.pop(_STREAM_NAME, None) and self.python.parameters[_STREAM_NAME].default is EMPTY:
            self.problems.append(f"parameter {_STREAM_NAME!r} is for live streaming; remove it or give it a default.")
        for name, reason in unresolved.items():
            if name in self.annotations:
                self.problems.append(
                    f"the annotation {self.annotations[name]!r} of parameter {name!r} cannot be resolved "
                    f"({reason}); import or define it at module level, outside `if TYPE_CHECKING:`."
                )

    def may_read_state(self) -> bool:
        """Return whether the function may read state through its context.

        It cannot if its code uses the context only for the attributes in `_STATELESS`, and passes it to nothing.
        """
        if self.context is None:
            return False
        code = getattr(self.function, "__code__", None)
        if code is None or self.context not in code.co_varnames:
            return True
        steps = itertools.pairwise(dis.get_instructions(code))
        uses = [
            (step, then)
            for step, then in steps
            if self.context in (step.argval if isinstance(step.argval, tuple) else (step.argval,))
        ]
        return any(
            step.argval != self.context
            or not step.opname.startswith("LOAD_FAST")
            or not then.opname.startswith(("LOAD_ATTR", "LOAD_METHOD"))
            or then.argval not in _STATELESS
            for step, then in uses
        )

    def hide(self, name: str) -> None:
        """Hide a parameter from the model. The caller must add its value before binding the arguments."""
        annotation = self.annotations.pop(name, None)
        if isinstance(annotation, str):  # it could not be resolved, which no longer matters
            self.problems = [text for text in self.problems if f" of parameter {name!r} " not in text]

    @functools.cached_property
    def model(self) -> type[BaseModel]:
        """The pydantic model of the arguments. Its fields are numbered, with the parameter names as aliases.

        Raises:
            InvalidTool: The function cannot be a tool. The message names each invalid parameter.
        """
        if self.problems:
            raise InvalidTool(self.name, " ".join(self.problems))
        try:
            return self._create_model(self.annotations)
        except Exception as error:  # a type's own schema hook can raise anything
            raise self._explain_failure(error) from error

    @functools.cached_property
    def schema(self) -> JsonObject | None:
        """The JSON schema of the arguments, or None if the function does not take any from the model.

        Raises:
            InvalidTool: A parameter cannot be described to a model. The message names each invalid parameter.
        """
        if not self.model.model_fields:
            return None
        # As in ADK, if the function is a pydantic class, its own JSON schema is used.
        function: Any = self.function
        own = isinstance(function, type) and issubclass(function, BaseModel)
        try:
            return _generate_schema(function if own else self.model)
        except Exception as error:  # as above
            raise self._explain_failure(error) from error

    def _explain_failure(self, error: Exception) -> InvalidTool:
        """Return an error that names each parameter that cannot be described to a model, testing each separately."""
        problems = []
        for name, annotation in self.annotations.items():
            try:
                _generate_schema(self._create_model({name: annotation}))
            except Exception as own:  # noqa: BLE001  # as above
                problems.append(
                    f"parameter {name!r} of type {_type_name(annotation)} cannot be described to a model "
                    f"({_reason(own)}); {_remedy(annotation)}."
                )
        return InvalidTool(self.name, " ".join(problems) or f"cannot be described to a model ({_reason(error)}).")

    def _create_model(self, annotations: Mapping[str, Any]) -> type[BaseModel]:
        # Number the fields, because pydantic does not allow field names such as `schema`, `_x` or `model_config`.
        fields = {f"p{i}": self._create_field(*item) for i, item in enumerate(annotations.items())}
        config = ConfigDict(extra="ignore", protected_namespaces=())
        model: type[BaseModel] = create_model(f"{self.name}Params", __config__=config, **fields)
        return model

    @functools.cached_property
    def _descriptions(self) -> dict[str, str]:
        return parameter_descriptions(self.function)

    def _create_field(self, name: str, annotation: Any) -> Any:
        default = self.python.parameters[name].default
        if isinstance(default, FieldInfo):  # `a: int = Field(ge=1)`, as in FastAPI
            annotation, default = Annotated[annotation, default], EMPTY
        settings: dict[str, Any] = {"alias": name, "validation_alias": name, "serialization_alias": name}
        if default is not EMPTY:
            settings["default"] = default
        if name in self._descriptions and FieldInfo.from_annotation(annotation).description is None:
            settings["description"] = self._descriptions[name]
        return (annotation, Field(**settings))

    @functools.cached_property
    def response_schema(self) -> JsonObject | None:
        """The JSON schema of the function's result, or None if it is not annotated or cannot be described."""
        annotation, function = self.python.return_annotation, self.function
        if annotation is EMPTY or (isinstance(function, type) and issubclass(function, BaseModel)):
            return None
        try:
            output = _find_output_type(resolve_annotation(annotation, namespace_of(function)))
            schema: JsonObject = to_plain_json(_create_adapter(output).json_schema(schema_generator=Schema))
            return schema
        except Exception:  # noqa: BLE001  # a type's own schema hook can raise anything
            return None

    @property
    def required_names(self) -> list[str]:
        """The names of the parameters that do not have a default."""
        return [name for name in self.annotations if self.python.parameters[name].default is EMPTY]

    def find_missing(self, args: JsonObject) -> list[str]:
        """Return the required parameters that are missing from `args`, in signature order."""
        return [name for name in self._required if name not in args]

    @functools.cached_property
    def _required(self) -> list[str]:
        fields = zip(self.annotations, self.model.model_fields.values(), strict=True)
        return [name for name, field in fields if field.is_required()]

    def convert(self, args: JsonObject) -> dict[str, Any]:
        """Return a deep copy of the known arguments, converted to the annotated types.

        Raises:
            ValidationError: An argument cannot be converted to the annotated type.
        """
        known = {
            name: args[name]
            for name in self.annotations
            # Models often send null to omit an argument, and `d: str = None` means that null is allowed.
            if name in args and not (args[name] is None and self.python.parameters[name].default is None)
        }
        # Validate as JSON, so that pydantic models in strict mode accept strings for dates and enums.
        parsed = self.model.model_validate_json(to_json(known))
        values = {name: getattr(parsed, f"p{i}") for i, name in enumerate(self.annotations)}
        return {name: value for name, value in values.items() if name in known or self._lacks_default(name)}

    def convert_to_json(self, args: JsonObject) -> JsonObject:
        """Return the converted arguments as JSON, or the arguments unchanged if the conversion does not round-trip.

        Raises:
            ValidationError: An argument cannot be converted to the annotated type.
        """
        values = self.convert(args)
        known = {name: args[name] for name in self.annotations if name in args}
        try:
            parsed = self.model.model_validate_json(to_json({name: known[name] for name in values if name in known}))
            dumped = parsed.model_dump(mode="json", by_alias=True, warnings=False)
            converted: JsonObject = to_plain_json({name: dumped[name] for name in values if name in known})
            return converted if self.convert(converted) == self.convert(known) else known
        except (NotJson, PydanticSerializationError, ValidationError):
            return known

    def _lacks_default(self, name: str) -> bool:
        """Return whether a parameter has no default that Python can apply. A pydantic Field may still define one."""
        default = self.python.parameters[name].default
        return default is EMPTY or isinstance(default, FieldInfo)

    def bind(self, values: Mapping[str, Any], context: ToolContext) -> inspect.BoundArguments:
        """Bind the arguments for the call, including the context and the defaults."""
        arguments = dict(values)
        if self.context is not None:
            arguments[self.context] = context
        arguments |= {name: context.resources[resource] for name, resource in self.resources.items()}
        bound = inspect.BoundArguments(self.python, OrderedDict(arguments))
        bound.apply_defaults()
        return bound

    def build_arguments(self, values: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Return the values that the function receives: the arguments, the function's defaults and the context."""
        arguments = self.bind(values, context).arguments
        return {name: arguments[name] for name in (*self.annotations, self.context) if name in arguments}

    def bind_from(self, arguments: Mapping[str, Any], context: ToolContext) -> inspect.BoundArguments:
        """Bind another function's arguments to this function, dropping those that this function does not take."""
        kinds = {parameter.kind: parameter.name for parameter in self.python.parameters.values()}
        rest = kinds.get(inspect.Parameter.VAR_KEYWORD)
        taken = {name: value for name, value in arguments.items() if name in self.annotations}
        if rest is not None:
            taken[rest] = {name: value for name, value in arguments.items() if name not in self.annotations}
        return self.bind(taken, context)


def validation_mistakes(error: ValidationError) -> list[tuple[str, str]]:
    """Return the dotted path and the reason for each invalid value. Possibly secret values are not quoted."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return [(".".join(map(str, problem["loc"])), problem["msg"]) for problem in problems]


def argument_mistakes(error: ValidationError, annotations: Mapping[str, Any]) -> list[str]:
    """Return one line per invalid argument, listing the reasons why it is invalid."""
    mistakes: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        name, *path = map(str, problem["loc"] or ("arguments",))
        mistakes.setdefault(name, []).append(f"{'.'.join(path)}: {problem['msg']}" if path else problem["msg"])
    return [
        f"Parameter {name!r}: expected type '{_type_name(annotations.get(name, Any))}', "
        "validation error: "
        + "; ".join(texts[:_SHOWN_ERRORS])
        + (f"; and {len(texts) - _SHOWN_ERRORS} more" if len(texts) > _SHOWN_ERRORS else "")
        for name, texts in mistakes.items()
    ]


class Schema(GenerateJsonSchema):
    """A schema generator that works like ADK's and omits defaults that cannot be represented in JSON."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def encode_default(self, dft: Any) -> Any:
        try:
            return to_plain_json(super().encode_default(dft))
        except NotJson as error:
            raise PydanticSerializationError(str(error)) from error


def _generate_schema(model: type[BaseModel]) -> JsonObject:
    schema: JsonObject = to_plain_json(model.model_json_schema(schema_generator=Schema))
    return schema


def _find_output_type(annotation: Any) -> Any:
    """Return the type of the output that a generator yields, ignoring events. Other annotations are unchanged."""
    if typing.get_origin(annotation) not in _GENERATORS:
        return annotation
    yielded = typing.get_args(annotation)[0]
    members = typing.get_args(yielded) if typing.get_origin(yielded) in _UNIONS else (yielded,)
    outputs = tuple(member for member in members if not _is_event(member))
    return typing.Union[outputs] if outputs else Any  # noqa: UP007  # built from a list


def _create_adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:  # models and dataclasses have their own config
        return TypeAdapter(annotation)


def namespace_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the namespace for evaluating a function's annotations."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = type(function).__call__
    function = getattr(function, "__func__", function)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    names = dict(getattr(function, "__globals__", None) or getattr(module, "__dict__", {}))
    return names | {parameter.__name__: parameter for parameter in getattr(function, "__type_params__", ())}


def resolve_annotation(annotation: Any, namespace: dict[str, Any]) -> Any:
    if annotation is EMPTY:
        return Any
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, namespace, include_extras=True)["it"]


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):  # it could not be resolved, for example because it is imported under TYPE_CHECKING
        bare = annotation.replace(" ", "").removesuffix("|None").removeprefix("Optional[").removesuffix("]")
        return _CONTEXT_ANNOTATION.fullmatch(bare) is not None
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _is_context(typing.get_args(annotation)[0])
    if origin in _UNIONS:
        return any(map(_is_context, typing.get_args(annotation)))
    return annotation is ToolContext


def _find_resource(annotation: Any) -> Resource | None:
    """Return the mark of a parameter that receives a resource. `Annotated[Pool, Resource]` is a mark, too."""
    marks = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()
    found = (Resource() if mark is Resource else mark for mark in marks)
    return next((mark for mark in found if isinstance(mark, Resource)), None)


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) is Annotated:
        return _type_name(typing.get_args(annotation)[0])
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _reason(error: Exception) -> str:
    return str(error).split("\n")[0].split(". ")[0].removesuffix(".") or type(error).__name__


def _remedy(annotation: Any) -> str:
    if _is_context(annotation):
        return "only one parameter can be the ToolContext"
    if typing.is_typeddict(annotation):
        return "import TypedDict from typing_extensions"
    return "use plain types, dataclasses or pydantic models"


def _is_event(kind: Any) -> bool:
    """Return whether a type is the class of events, which takes long to import."""
    return getattr(kind, "__module__", "") == "waystation.events.event"


def _add_output(output: Any, yielded: Any) -> Any:
    """Return a generator's output after it yields another value. As in ADK, at most one value may be non-None.

    Raises:
        ValueError: The generator has already yielded an output. The message is the same as in ADK.
        TypeError: The value is an event.
    """
    if yielded is None:
        return output
    if _is_event(type(yielded)):
        raise TypeError("A tool cannot yield events; yield its one output, and write to `tool_context.state`.")
    if output is not None:
        raise ValueError("Output already set. A node can produce at most one output.")
    is_model = isinstance(yielded, BaseModel) and not type(yielded).__module__.startswith("google.genai")
    return yielded.model_dump() if is_model else yielded


async def invoke(function: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    """Call a sync or async function and return its result. A sync function runs in a thread with our contextvars."""
    if _is_kind(inspect.isasyncgenfunction, function):
        return await _await_result(_run_async_generator(function(*bound.args, **bound.kwargs)))
    if _is_kind(inspect.iscoroutinefunction, function):
        return await _await_result(function(*bound.args, **bound.kwargs))
    result = await run_in_thread(_call_in_thread, function, bound)
    if inspect.isawaitable(result):  # a sync wrapper around an async function
        return await _await_result(result)
    return result


def _is_kind(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    if inspect.isroutine(function) or isinstance(function, functools.partial | type):
        return kind(function)
    return kind(type(function).__call__)


def _call_in_thread(function: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    try:
        result = function(*bound.args, **bound.kwargs)
        return _run_generator(result) if _is_kind(inspect.isgeneratorfunction, function) else result
    except (StopIteration, SystemExit, asyncio.CancelledError) as error:
        raise _wrap_error(error) from error


def _run_generator(generator: Generator[Any, None, Any]) -> Any:
    with contextlib.closing(generator):
        return functools.reduce(_add_output, generator, None)


async def _run_async_generator(generator: AsyncGenerator[Any, None]) -> Any:
    output = None
    async with contextlib.aclosing(generator):
        async for yielded in generator:
            output = _add_output(output, yielded)
    return output


async def _await_result(result: Awaitable[Any]) -> Any:
    try:
        return await result
    except SystemExit as error:
        raise _wrap_error(error) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _wrap_error(error) from error


def _wrap_error(error: BaseException) -> RuntimeError:
    """Return an exception to raise in place of one that must not reach the event loop.

    A thread cannot pass StopIteration to its caller, which would wait forever. SystemExit would stop the whole worker.
    A CancelledError raised by the tool itself would look as if the call had been canceled.
    """
    return RuntimeError(f"{error!r} was raised out of the tool.")
