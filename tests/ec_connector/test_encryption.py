"""Mutual TLS with certificates made here."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocol.errors import InvalidRequest
from tests.ec_connector.child import content
from tests.ec_connector.conftest import MakeConnector
from tests.ec_connector.helpers import fails, fetched, is_clean, publish, until


def certificates(folder: Path, name: str) -> dict[str, str]:
    """A self-signed certificate that is its own authority, as settings."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    public, private = folder / f"{name}.crt", folder / f"{name}.key"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return {"tls_cert": str(public), "tls_key": str(private), "tls_ca": str(public)}


@pytest.mark.parametrize("streams", [1, 3])
async def test_items_travel_encrypted(make: MakeConnector, tmp_path: Path, streams: int) -> None:
    settings = certificates(tmp_path, "cluster")
    producer = await make(**settings)
    consumer = await make(**settings, tcp_streams=streams)
    for seed, nbytes in enumerate((1, 70_000, 13 * 2**20 + 5)):
        item = await publish(producer, seed, nbytes)
        assert await fetched(consumer, item, 20) == content(seed, nbytes)
    await until(lambda: is_clean(producer))


async def test_the_item_is_not_readable_on_the_way(make: MakeConnector, tmp_path: Path) -> None:
    settings = certificates(tmp_path, "cluster")
    producer = await make(**settings)
    reader, writer = await asyncio.open_connection("127.0.0.1", producer.port)
    writer.write(b"no TLS here")
    assert b"challenge" not in await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_a_peer_of_another_authority_or_without_tls_is_kept_out(
    make: MakeConnector, tmp_path: Path
) -> None:
    producer = await make(**certificates(tmp_path, "cluster"))
    item = await publish(producer, 1, 100)
    for settings in (certificates(tmp_path, "stranger"), {}):
        stranger = await make(**settings, connect_timeout_s=1.0)
        with fails("peer_unreachable", "hash-1"):
            await fetched(stranger, item, 2)
    assert is_clean(producer)


async def test_files_that_are_missing_are_named(make: MakeConnector) -> None:
    with pytest.raises(ValueError, match="go together"):
        await make(tls_cert="a.crt")
    with pytest.raises(InvalidRequest, match="tls"):
        await make(tls_cert="no.crt", tls_key="no.key", tls_ca="no.crt")
