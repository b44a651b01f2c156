"""Workers walk through the payloads of a workflow task only if one of them may be offloaded or encoded."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Self, cast

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.bridge import worker as bridge
from temporalio.bridge.proto.workflow_activation import SignalWorkflow, WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import CompleteWorkflowExecution, WorkflowCommand
from temporalio.bridge.proto.workflow_completion import Success, WorkflowActivationCompletion
from temporalio.converter import (
    DataConverter,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)
from temporalio.worker import WorkflowInstance
from temporalio.worker._workflow import _CommandAwareDataConverter

from waystation.storage import Blobs, is_reference, offloading
from waystation.storage.driver import BlobDriver, Offload
from waystation.worker.process import skip_needless_walks

LIMIT = 1_000
SMALL = Payload(metadata={"encoding": b"json/plain"}, data=b'"small"')
LARGE = Payload(metadata={"encoding": b"json/plain"}, data=b'"' + b"x" * LIMIT + b'"')


class CountingStorage(Offload):
    """Counts the payloads that walks pass to it."""

    count = 0

    async def _retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.count += len(payloads)
        return await super()._retrieve_payload_sequence(payloads)

    async def _store_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.count += len(payloads)
        return await super()._store_payload_sequence(payloads)


class Reversing(PayloadCodec):
    """A codec that reverses the bytes of payloads."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata=payload.metadata, data=payload.data[::-1]) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self.encode(payloads)


class ReversingInContext(Reversing, WithSerializationContext):
    """A reversing codec that could use the serialization context."""

    def with_context(self, context: SerializationContext) -> Self:
        return self


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace functions of the SDK, as the worker program does, for one test."""
    for owner, name in (
        (bridge, "decode_activation"),
        (bridge, "encode_completion"),
        (_CommandAwareDataConverter, "create"),
    ):
        monkeypatch.setattr(owner, name, vars(owner)[name])
    skip_needless_walks()


def create(folder: Path, codec: PayloadCodec | None = None) -> tuple[DataConverter, CountingStorage]:
    """Return a converter that offloads from `LIMIT` bytes on, and its storage."""
    storage = CountingStorage(drivers=[BlobDriver(Blobs(folder))], payload_size_threshold=LIMIT)
    converter = offloading(Blobs(folder), converter=DataConverter(payload_codec=codec))
    return dataclasses.replace(converter, external_storage=storage), storage


async def receive(converter: DataConverter, payload: Payload) -> Payload:
    """Return the payload of a signal as a workflow receives it."""
    signal = SignalWorkflow(signal_name="answer", input=[payload])
    activation = WorkflowActivation(jobs=[WorkflowActivationJob(signal_workflow=signal)])
    await bridge.decode_activation(activation, converter, decode_headers=True, storage_concurrency_limit=3)
    return activation.jobs[0].signal_workflow.input[0]


async def send(converter: DataConverter, payload: Payload) -> Payload:
    """Return the payload of a result as a worker sends it."""
    command = WorkflowCommand(complete_workflow_execution=CompleteWorkflowExecution(result=payload))
    completion = WorkflowActivationCompletion(successful=Success(commands=[command]))
    await bridge.encode_completion(completion, converter, encode_headers=True, storage_concurrency_limit=3)
    return completion.successful.commands[0].complete_workflow_execution.result


async def test_small_payloads_need_no_walk(tmp_path: Path) -> None:
    """A signal or a result below the limit does not reach the storage."""
    converter, storage = create(tmp_path)
    assert (await receive(converter, SMALL), await send(converter, SMALL)) == (SMALL, SMALL)
    assert storage.count == 0


async def test_large_payloads_are_stored_and_retrieved(tmp_path: Path) -> None:
    """The result becomes a reference, and a signal with this reference becomes the payload."""
    converter, storage = create(tmp_path)
    reference = await send(converter, LARGE)
    assert is_reference(reference)
    assert await receive(converter, reference) == LARGE
    assert storage.count == 2


@pytest.mark.parametrize(("codec", "created"), [(None, False), (Reversing(), False), (ReversingInContext(), True)])
def test_converters_are_created_for_workflow_tasks_if_the_codec_uses_the_context(
    tmp_path: Path, codec: PayloadCodec | None, created: bool
) -> None:
    """The SDK's converter for a task passes the serialization context to the codec."""
    converter, _ = create(tmp_path, codec)
    of_task = _CommandAwareDataConverter.create(
        instance=cast(WorkflowInstance, None),
        context_free_dc=converter,
        workflow_context_dc=converter,
        workflow_context=WorkflowSerializationContext(namespace="default", workflow_id="one"),
    )
    assert (of_task is not converter) is created
    assert of_task.payload_codec is codec


async def test_a_converter_with_a_codec_encodes_and_decodes_small_payloads(tmp_path: Path) -> None:
    """A codec always gets small payloads, too."""
    converter, _ = create(tmp_path, Reversing())
    encoded = await send(converter, SMALL)
    assert encoded.data == SMALL.data[::-1]
    assert await receive(converter, encoded) == SMALL
