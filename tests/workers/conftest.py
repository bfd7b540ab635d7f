"""A tiny random Qwen3-VL checkpoint, and workers on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from ec_connector.config import EcConfig
from protocol.replica import Replica
from serving.rpc_client import RpcChannel
from tests.workers.prompts import IMAGE_PAD
from workers.config import WorkerConfig, WorkerRole
from workers.server import WorkerServer

torch.set_num_threads(1)

VOCAB = 320


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose answers mean nothing but differ from picture to picture."""
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("tiny")
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "initializer_range": 0.3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
            "eos_token_id": 2,
            "pad_token_id": 0,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 64,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "deepstack_visual_indexes": [0],
            "initializer_range": 0.3,
        },
        image_token_id=IMAGE_PAD,
        video_token_id=IMAGE_PAD + 1,
        vision_start_token_id=IMAGE_PAD - 2,
        vision_end_token_id=IMAGE_PAD - 1,
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config).eval()
    model.save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    (path / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
                "rescale_factor": 1 / 255,
                "do_rescale": True,
                "do_normalize": True,
            }
        )
    )
    return path


@dataclass(frozen=True)
class RunningWorker:
    """A worker that listens, and a connection to it."""

    server: WorkerServer
    replica: Replica
    channel: RpcChannel
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value, 0 where it was never set."""
        return self.registry.get_sample_value(f"triptych_worker_{name}", labels) or 0.0

    @property
    def holds_nothing(self) -> bool:
        """No request runs or waits, no KV block is held, nobody reads an item."""
        status = self.server.status()
        leases = self.registry.get_sample_value("triptych_ec_leases") or 0.0
        return (
            status.running == status.waiting == 0
            and self.metric("kv_blocks_used") == self.metric("running_requests") == 0
            and leases == 0
        )

    async def until(self, **gauges: float) -> None:
        """Wait until the gauges have these values."""
        async with asyncio.timeout(10):
            while any(self.metric(name) != value for name, value in gauges.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_idle(self) -> None:
        """Wait until the worker holds nothing."""
        async with asyncio.timeout(10):
            while not self.holds_nothing:  # noqa: ASYNC110 - metrics announce nothing
                await asyncio.sleep(0.01)


StartWorker = Callable[..., Awaitable[RunningWorker]]


@pytest.fixture
async def start_worker(checkpoint: Path) -> AsyncIterator[StartWorker]:
    """`await start_worker(role, **config)`; all are stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start(role: WorkerRole, **fields: object) -> RunningWorker:
            values: dict[str, object] = {
                "model": str(checkpoint),
                "served_model_name": "tiny",
                "kv_bytes": 2 * 2**20,
                "ec": EcConfig(capacity_bytes=2**20, threads=2, lease_s=5.0),
                "enable_scale_out": True,
                "threads": 1,
            }
            registry = CollectorRegistry()
            config = WorkerConfig(role=role, **(values | fields))  # type: ignore[arg-type]
            server = WorkerServer(config, registry)
            replica = await server.start()
            stack.push_async_callback(server.stop)
            channel = RpcChannel(replica.grpc, str(fields.get("cluster_token", "")))
            stack.push_async_callback(channel.close)
            return RunningWorker(server, replica, channel, registry)

        yield start
