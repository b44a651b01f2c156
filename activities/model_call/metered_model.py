"""Reserve model calls in the quota store before they are made, and settle them afterwards."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence

import structlog
from temporalio import activity

from waystation.activities.contexts import Contexts
from waystation.core import ids
from waystation.core.budget import QUOTA_WAIT, Amounts, Budget, Price, Quotas, RateLimit, Usage
from waystation.core.conversation import estimate
from waystation.core.errors import BudgetExhausted, ModelOverloaded, ModelRefused, RateLimited, StoreFailed
from waystation.core.payload import digest, encode
from waystation.models import BaseLlm, FallbackModel, LlmRequest, LlmResponse
from waystation.models.known_models import known_models
from waystation.models.providers import find_provider
from waystation.storage import MeteredCall, QuotaStore, Reservation

events = structlog.get_logger("waystation.activities")

MAX_WAIT_S = 5.0
"""How long an attempt may wait for capacity. For longer waits, it fails, and the server starts another attempt later.
Waiting calls then do not occupy the worker."""
MAX_OUTPUT_TOKENS = 1_000
"""The number of output tokens to reserve, or the request's `maxOutputTokens` if that is smaller. Most replies are much
shorter than the maximum, so reserving the maximum would leave most of the limit unused."""
_CHARS_PER_TOKEN = 4
_NO_PRICE = (
    "The model {!r} was not called: a budget limits the cost, and the model has no price. Add it to the quotas' "
    "`prices`, or limit the tokens instead."
)


class Meters:
    """The quotas of a worker, and their store."""

    def __init__(self, quotas: Quotas) -> None:
        """Set the quotas. The store is created when first needed."""
        self.quotas, self.store = quotas, QuotaStore(quotas.store)

    def of(self, contexts: Contexts, purpose: str = "") -> "Meter":
        """Return the meter for a model call. A call with another purpose needs a meter of its own."""
        return Meter(self.quotas, self.store, contexts, purpose)


class Meter:
    """Reserves quota for one model call, whichever model answers it."""

    def __init__(self, quotas: Quotas, store: QuotaStore, contexts: Contexts, purpose: str) -> None:
        """Store the settings; see `Meters.of`."""
        self._quotas, self._store = quotas, store
        state, log_id = contexts.log.state, contexts.log.invocation_id
        started = state.input
        self._id = digest([log_id, contexts.step, purpose])
        self._tenant = (started.tenant if started else None) or ""
        self._user = started.user_id if started else ""
        self._sender = ids.fairness_key(started.app_key, self._user) if started else ""
        # A new invocation, unlike the call of an agent by another agent, can fail without the loss of any work.
        self._is_new = state.budget_use.spent.model_calls == 0 and not (started and started.origin)
        self.waits = 0
        """How many earlier attempts did not call the model, because it had reached its limit."""
        self._is_waiting = False

    def wrap(self, model: BaseLlm) -> BaseLlm:
        """Return a model that reserves each call. A fallback model reserves the calls of the models that it tries."""
        if isinstance(model, FallbackModel):
            return model.wrapped(lambda member: MeteredModel(member, self, max_wait_s=0.0))
        return MeteredModel(model, self, max_wait_s=MAX_WAIT_S)

    async def reserve(self, model: BaseLlm, request: LlmRequest, price: Price | None) -> Reservation | float | None:
        """Reserve a call, or return after how many seconds to try again. Return None if no quota applies.

        Raises:
            ModelRefused: A budget limits the cost, and the model has no price.
            BudgetExhausted: A budget is used up.
            StoreFailed: The store is not available.
        """
        name = model.model or request.model
        limit = self._quotas.find_limit(name)
        if not (limit or self._quotas.budgets):
            if self._is_waiting:  # under the limit of another model
                await self._store.stop_waiting(self._id)
            return None
        budgets = self._quotas.find_budgets(self._tenant, self._user)
        if price is None and any(budget.max_cost for budget in budgets):
            raise ModelRefused(_NO_PRICE.format(name))
        expected = _expect_usage(request)
        rate = RateLimit(requests=limit.requests_per_minute, tokens=limit.tokens_per_minute) if limit else RateLimit()
        call = MeteredCall(
            id=self._id,
            attempt=request.attempt,
            sender=self._sender,
            tenant=self._tenant,
            user=self._user,
            name=f"{limit.model} {_find_account(model, name)}" if limit else "",
            rate=rate,
            tokens=expected.total,
            cost=price.of(expected) if price else 0.0,
            budgets=tuple(budgets),
            counts=bool(self._quotas.budgets),
        )
        try:
            result = await self._store.reserve(call)
        except BudgetExhausted as error:
            error.is_held = not self._is_new
            raise
        self._is_waiting = isinstance(result, float)
        return result

    async def settle(
        self, reservation: Reservation, used: Amounts | None, sent_at: float, retry_after_s: float | None = None
    ) -> None:
        """Replace what was reserved by what was used; see `QuotaStore.settle`. If this fails, log a warning."""
        delay_s = sent_at - reservation.reserved_at
        try:
            await self._store.settle(reservation, used, retry_after_s=retry_after_s, delay_s=delay_s)
        except StoreFailed as error:
            events.warning("quota.not_settled", limit=reservation.call.name, problem=str(error))

    def find_price(self, model: str) -> Price | None:
        """Return the price of a model, or None if it is not known."""
        known = known_models().find(model)
        return Budget(prices=self._quotas.prices).price([model], {model: known.price} if known and known.price else {})


class MeteredModel(BaseLlm):
    """Waits until a call may start, reserves it, and settles it when it has ended."""

    def __init__(self, model: BaseLlm, meter: Meter, *, max_wait_s: float) -> None:
        """Wrap a model. `max_wait_s` is how long a call waits here before it fails with `RateLimited`."""
        self._inner, self._meter, self._max_wait_s = model, meter, max_wait_s
        self.model = model.model

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the model's response; see `BaseLlm.generate`.

        Raises:
            RateLimited: The call may not start yet.
            BudgetExhausted: A budget is used up.
        """
        name = self.model or request.model
        price = self._meter.find_price(name)
        await self._inner.prepare()  # The import of a client library may take seconds on a busy machine.
        reservation = await self._reserve(name, request, price)
        if reservation is None:
            return await self._inner.generate(request, on_text=on_text)
        self._meter.waits = max(self._meter.waits, reservation.waits)
        sent_at = time.monotonic()  # seconds after the reservation if this process is busy
        try:
            response = await self._inner.generate(request, on_text=on_text)
        except (ModelOverloaded, ModelRefused) as error:
            # If the provider has answered with an error, the call used nothing. Otherwise, that is not known.
            used = Amounts() if error.status and error.status >= 400 else None
            await self._meter.settle(reservation, used, sent_at, getattr(error, "retry_after_s", None))
            raise
        await self._meter.settle(reservation, _count(response.usage, price), sent_at)
        return response

    async def _reserve(self, name: str, request: LlmRequest, price: Price | None) -> Reservation | None:
        waited_s = 0.0
        while isinstance(result := await self._meter.reserve(self._inner, request, price), float):
            if waited_s + result > self._max_wait_s:
                _record_wait(name, waited_s + result)
                raise RateLimited(name, result)
            await asyncio.sleep(result)
            waited_s += result
        if waited_s:
            _record_wait(name, waited_s)
        return result


def _record_wait(model: str, seconds: float) -> None:
    """Record how long a quota delays a call, if this worker exports metrics."""
    if activity.in_activity():
        activity.metric_meter().create_histogram_float(*QUOTA_WAIT).record(seconds, {"model": model})


def _expect_usage(request: LlmRequest) -> Usage:
    """Return the usage to reserve for a request, estimated from its length."""
    others = len(request.system_instruction or "") + len(encode(request.genai_tools()))
    limit = request.config.get("maxOutputTokens")
    output = min(limit, MAX_OUTPUT_TOKENS) if isinstance(limit, int) else MAX_OUTPUT_TOKENS
    return Usage(prompt_tokens=estimate(request.contents) + others // _CHARS_PER_TOKEN, output_tokens=output)


def _count(usage: Usage | None, price: Price | None) -> Amounts | None:
    """Return what a reply used, or None if the provider did not report it."""
    if usage is None or not usage.total:
        return None
    return Amounts(tokens=usage.total, cost=price.of(usage) if price else 0.0)


def _find_account(model: BaseLlm, name: str) -> str:
    """Return a digest of the API key and the address with which a model is called, or of the project on Vertex AI."""
    provider = find_provider(name)
    variables: Sequence[str] = (*(provider.variables if provider else ()), "GOOGLE_CLOUD_PROJECT")
    key, address = model.account()
    return digest([address, [key] if key else [os.environ.get(variable) for variable in variables]])[:12]
