from __future__ import annotations

import asyncio
import socket
import struct
import time

import msgspec
import pytest

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from ec_connector.keys import item_key
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest
from protocol.transfer import EcItem
from tests.ec_connector.child import content
from tests.ec_connector.conftest import TOKEN, MakeConnector
from tests.ec_connector.helpers import fails, fetched, is_clean, publish, until


async def test_the_wrong_token_is_incompatible(make: MakeConnector) -> None:
    producer, stranger = (
        await make(),
        await make(cluster_token="another", allowed_hosts=("127.0.0.1",)),
    )
    item = msgspec.structs.replace(await publish(producer, 1, 100), mac="")
    with fails("incompatible", "hash-1"):
        await fetched(stranger, item)
    assert is_clean(producer)


async def test_a_forged_descriptor_makes_no_connection(make: MakeConnector) -> None:
    consumer = await make()
    connected = asyncio.Event()

    async def listen(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for mac in ("", "0" * 64):
        with pytest.raises(InvalidRequest):
            await fetched(consumer, EcItem("h", "127.0.0.1", port, mac=mac))
    assert not connected.is_set()
    server.close()
    await server.wait_closed()


async def test_the_minimal_form_works_with_an_allowed_host(make: MakeConnector) -> None:
    producer, consumer = await make(), await make(allowed_hosts=("127.0.0.1",))
    await publish(producer, 1, 100)
    async with consumer.fetch(
        EcItem("hash-1", "127.0.0.1", producer.port), Deadline.after(5)
    ) as got:
        assert bytes(got.data) == content(1, 100)


async def test_an_item_of_another_model_is_incompatible(make: MakeConnector) -> None:
    producer, consumer = await make("model-a"), await make("model-b", allowed_hosts=("127.0.0.1",))
    item = await publish(producer, 1, 100)
    with fails("incompatible", "hash-1"):
        async with consumer.fetch(item, Deadline.after(5), fingerprint="model-b"):
            pass
    other = msgspec.structs.replace(item, key=item_key("model-b", "", "hash-1"), mac="")
    with fails("incompatible", "hash-1"):
        await fetched(consumer, other)


async def test_a_restarted_producer_answers_expired(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    item = await publish(producer, 1, 100)
    assert await fetched(consumer, item) == content(1, 100)
    port = producer.port
    await producer.stop()
    with fails("peer_unreachable", "hash-1"):
        await fetched(consumer, item)
    again = await make(port=port)
    assert again.epoch != producer.epoch
    await publish(again, 1, 100)
    with fails("expired", "hash-1"):
        await fetched(consumer, item)
    producer._executor.shutdown()


async def test_an_unreachable_peer_is_named_in_time(make: MakeConnector) -> None:
    consumer = await make(allowed_hosts=("127.0.0.1",))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        item = EcItem("h", *silent.getsockname())
        began = time.monotonic()
        with fails("peer_unreachable", "h"):
            await fetched(consumer, item, timeout_s=0.3)
        assert time.monotonic() - began < 0.6
    began = time.monotonic()
    with fails("peer_unreachable", "h"):
        await fetched(consumer, item)
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize(
    "rubbish",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 2**31), struct.pack(">I", 3) + b"\xc1\xc1\xc1"],
)
async def test_rubbish_closes_its_connection_and_nothing_else(
    make: MakeConnector, rubbish: bytes
) -> None:
    producer, consumer = await make(), await make()
    item = await publish(producer, 1, 100)
    reader, writer = await asyncio.open_connection("127.0.0.1", producer.port)
    writer.write(rubbish)
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert await fetched(consumer, item) == content(1, 100)


async def test_a_corrupt_frame_of_a_known_consumer_ends_its_session(make: MakeConnector) -> None:
    producer, consumer = await make(transports=("shm",)), await make(transports=("shm",))
    item = await publish(producer, 1, 100)
    with fails("expired", "hash-1"):
        async with consumer.fetch(item, Deadline.after(5)):
            for peer in consumer._consumer.peers._open.values():
                peer.send_packed(struct.pack(">I", 3) + b"\xc1\xc1\xc1")
            await until(lambda: is_clean(producer))
    assert await fetched(consumer, item) == content(1, 100)


async def test_an_address_beyond_loopback_needs_a_token() -> None:
    connector = EcConnector(EcConfig(host="0.0.0.0", advertise_host="10.0.0.1"), "fp")
    with pytest.raises(InvalidRequest, match="token"):
        await connector.start()
    connector = EcConnector(EcConfig(host="0.0.0.0", cluster_token=TOKEN), "fp")
    with pytest.raises(InvalidRequest, match="advertise_host"):
        await connector.start()


async def test_an_unknown_transport_is_refused_with_the_known_ones(make: MakeConnector) -> None:
    with pytest.raises(InvalidRequest, match=r"unknown transport 'smoke'.*tcp"):
        await make(transports=("smoke",))
