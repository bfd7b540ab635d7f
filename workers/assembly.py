"""The parts of a worker, made from its configuration. The one place that knows all of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import torch

from ec_connector.connector import EcConnector
from ec_connector.torch_adapter import as_buffer, from_buffer
from protocol.errors import InvalidRequest
from protocol.replica import Fingerprint
from telemetry.workers import WorkerMetrics
from workers.adapters import create_adapter
from workers.adapters.base import Adapter, LanguageModel, VisionTower
from workers.admission import Limits
from workers.config import WorkerConfig
from workers.encoder import EncoderQueue
from workers.engine import Engine
from workers.fingerprint import fingerprint
from workers.generation import Generator
from workers.grammar import load_grammars
from workers.handoff import HostKvTransfer, KvTransfer, StagedKvTransfer
from workers.kv_buffer import KvBuffer
from workers.kv_cache import BlockPool
from workers.media import MediaLoader
from workers.publisher import Publisher
from workers.runner import ModelRunner
from workers.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Model:
    """What was read from the checkpoint: the weights that the role needs, and no others."""

    adapter: Adapter
    dtype: torch.dtype
    device: torch.device
    language: LanguageModel | None
    tower: VisionTower | None
    fingerprint: Fingerprint

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Parts:
    """A worker that can compute, with its connector started and its engine not.

    Attributes:
        encoder: None without a vision tower.
        publisher: None but for roles that encode for others.
        scheduler, pool, generator: None without a language model.
        max_model_len: tokens of context.
    """

    connector: EcConnector
    engine: Engine
    encoder: EncoderQueue | None
    publisher: Publisher | None
    scheduler: Scheduler | None
    pool: BlockPool | None
    generator: Generator | None
    max_model_len: int


def load_model(config: WorkerConfig) -> Model:
    """Read the checkpoint; takes as long as its weights do.

    Raises:
        InvalidRequest: the checkpoint or the placement cannot work.
    """
    adapter = create_adapter(config.model)
    dtype = adapter.dtype if config.dtype == "auto" else getattr(torch, config.dtype)
    try:
        device = torch.device(config.device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest(f"device {config.device!r} cannot be used: {error}", "device") from (
            None
        )
    if config.dtype == "auto" and device.type == "cpu":
        dtype = torch.float32
    language = tower = None
    if config.loads_language:
        language = adapter.load_language(config.model, dtype, device)
    if config.loads_vision:
        tower = adapter.load_vision(config.model, dtype, device, normalize=config.normalize_pixels)
    name = str(dtype).removeprefix("torch.")
    print_ = fingerprint(config.model, config.revision, name, config.block_size)
    return Model(adapter, dtype, device, language, tower, print_)


async def assemble(config: WorkerConfig, model: Model, metrics: WorkerMetrics) -> Parts:
    """Make the parts; the caller stops the connector.

    Raises:
        InvalidRequest: a setting cannot work; names it.
    """
    connector = EcConnector(config.ec, model.fingerprint.digest, metrics.registry)
    await connector.start()
    try:
        return _assemble(config, model, metrics, connector)
    except BaseException:
        await connector.stop()
        raise


def _assemble(
    config: WorkerConfig, model: Model, metrics: WorkerMetrics, connector: EcConnector
) -> Parts:
    loop = asyncio.get_running_loop()
    shape = model.adapter.shape
    max_len = min(config.max_model_len or shape.max_len, shape.max_len)
    scheduler = runner = pool = kv = None
    if model.language is not None:
        kv = _kv_buffer(config, model, connector, max_len)
        pool = BlockPool(kv.num_blocks)
        scheduler = Scheduler(
            pool,
            config.block_size,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            prefix_caching=config.prefix_caching,
        )
        runner = ModelRunner(model.language, shape, kv)
    engine = Engine(loop, scheduler, runner, metrics, config.threads)
    encoder = publisher = generator = None
    if model.tower is not None:
        budget = config.encoder_max_batch_tokens
        encoder = EncoderQueue(loop, model.tower, budget, metrics, engine.wake)
        engine.encoder = encoder
    if encoder is not None and config.role in ("encode", "all"):
        publisher = Publisher(model.adapter, connector, encoder, model.dtype, metrics)
    if kv is not None:
        digest = model.fingerprint.digest
        generator = Generator(
            model.adapter,
            engine,
            MediaLoader(
                model.adapter,
                connector,
                encoder,
                digest,
                model.dtype,
                config.embedding_cache_bytes,
                config.max_item_wait_s,
                metrics,
            ),
            kv,
            kv_transfer(config, connector, engine, kv, digest),
            Limits((config.model_name,), max_len, config.max_num_seqs, config.seed),
            config.max_queued_requests,
            load_grammars(Path(config.model), shape.vocab, sorted(shape.eos)),
        )
    return Parts(connector, engine, encoder, publisher, scheduler, pool, generator, max_len)


def kv_transfer(
    config: WorkerConfig, connector: EcConnector, engine: Engine, kv: KvBuffer, digest: str
) -> KvTransfer:
    """How KV blocks travel: from the cache itself where that is in host memory."""
    if kv.tensor.device.type != "cpu":
        return StagedKvTransfer(connector, engine, kv, config.kv_staging_bytes, digest)
    region = connector.register("kv", as_buffer(kv.tensor))
    return HostKvTransfer(connector, engine, kv, region, digest)


def _kv_buffer(
    config: WorkerConfig, model: Model, connector: EcConnector, max_len: int
) -> KvBuffer:
    """The KV cache, in memory that every transport can read where it is on the host."""
    shape = model.adapter.shape
    size = KvBuffer.nbytes_per_block(shape, config.block_size, model.dtype)
    count = config.kv_bytes // size
    if count * config.block_size < max_len:
        raise InvalidRequest(
            f"kv_bytes {config.kv_bytes} holds {count * config.block_size} tokens, fewer than "
            f"max_model_len {max_len}: raise kv_bytes or lower max_model_len",
            "kv_bytes",
        )
    memory = None
    if model.device.type == "cpu":
        memory = from_buffer(connector.allocate(count * size), (count * size,), "uint8")
    return KvBuffer(shape, count, config.block_size, model.dtype, model.device, memory)
