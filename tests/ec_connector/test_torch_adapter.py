from __future__ import annotations

import pytest
import torch

from ec_connector.torch_adapter import as_buffer, from_buffer
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest
from tests.ec_connector.conftest import MakeConnector


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (4, 5)])
def test_a_tensor_survives_the_way_through_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    buffer = as_buffer(tensor)
    assert buffer.nbytes == tensor.nbytes
    assert torch.equal(from_buffer(buffer, shape, dtype), tensor)
    assert torch.equal(from_buffer(memoryview(bytes(buffer)), shape, dtype), tensor)


def test_neither_way_copies() -> None:
    tensor = torch.zeros(8, dtype=torch.bfloat16)
    again = from_buffer(as_buffer(tensor), (8,), "bfloat16")
    tensor[3] = 1
    assert again[3] == 1
    frozen = from_buffer(as_buffer(tensor).toreadonly(), (8,), "bfloat16")
    tensor[4] = 2
    assert frozen[4] == 2


def test_what_cannot_be_viewed_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        as_buffer(torch.zeros(4, 4).T)
    with pytest.raises(ValueError, match="unknown dtype"):
        from_buffer(memoryview(b"1234"), (1,), "Tensor")


async def test_an_embedding_travels_as_a_tensor(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    embedding = torch.randn(64, 96).to(torch.bfloat16)
    item = await producer.publish(
        "h", as_buffer(embedding), shape=tuple(embedding.shape), dtype="bfloat16"
    )
    async with consumer.fetch(item, Deadline.after(5)) as got:
        arrived = from_buffer(got.data, got.shape, got.dtype).clone()
    assert torch.equal(arrived, embedding)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
async def test_pinned_memory_without_a_device_is_refused(make: MakeConnector) -> None:
    with pytest.raises(InvalidRequest, match="CUDA device") as caught:
        await make(memory="pinned")
    assert caught.value.param == "ec.memory"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_a_pinned_store_serves_copies_from_the_device(
    make: MakeConnector, transport: str
) -> None:
    settings = {"memory": "pinned", "transports": (transport,)}
    producer, consumer = await make(**settings), await make(**settings)
    assert from_buffer(producer.allocate(4096), (4096,), "uint8").is_pinned()
    embedding = torch.randn(2048, 1024)
    item = await producer.publish("h", as_buffer(embedding), shape=(2048, 1024), dtype="float32")
    async with consumer.fetch(item, Deadline.after(5)) as got:
        arrived = from_buffer(got.data, got.shape, got.dtype).to("cuda")
        torch.cuda.synchronize()
    assert torch.equal(arrived.cpu(), embedding)
