"""Requests made from the OpenAPI description, valid and not: no 5xx, and answers as described."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from protocol.replica import Replica
from serving.rpc_client import RpcChannel
from tests.render.conftest import KEY

SECONDS = 40

CONFIG = """
[checks.positive_data_acceptance]
# What a part may hold, how long a prompt may be and which values go together is the model's matter
# and not in a schema: 400 is a described answer to it, as 404 is to a model that is not served.
expected-statuses = ["2xx", "400", "404", "413", "422"]
"""


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(SECONDS * 4 + 60)
async def test_every_request_gets_an_answer_that_is_described(
    replica: tuple[Replica, RpcChannel], tmp_path: Path
) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run",
        f"{replica[0].http}/openapi.json", "--header", f"Authorization: Bearer {KEY}",
        "--max-examples", "30", "--max-time", str(SECONDS), "--seed", "7", "--no-color",
        "--continue-on-failure", "--generation-database", "none", "--request-timeout", "30",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode(errors="replace")
    assert process.returncode == 0, text
    assert "Tested: 14" in text
