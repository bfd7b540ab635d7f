"""Configuration of a render server."""

from __future__ import annotations

from typing import Any

import msgspec

from ec_connector.config import EcConfig


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What media a client may send.

    Attributes:
        allowed_domains: hosts that media may be fetched from; empty: all public ones.
        allow_private_addresses: fetch from private, loopback and link-local addresses too.
        max_download_bytes: largest medium, in bytes, fetched or inline.
        max_image_pixels: largest image, in pixels, checked before it is decoded.
        max_frames: most frames sampled from one video.
        max_audio_seconds: longest sound, checked before it is decoded.
        max_items: modality -> most items in one prompt; `default_max_items` for the others.
        connect_timeout_s, read_timeout_s: of one connection to a media host.
        fetch_timeout_s: of a whole download, redirects included.
        max_redirects: hops that are followed, each checked like the first.
        cache_bytes: processed items kept in memory for requests with inline tensors.
        max_pending: media that may wait for a process at once; more are refused with 429.
    """

    allowed_domains: tuple[str, ...] = ()
    allow_private_addresses: bool = False
    max_download_bytes: int = 64 * 2**20
    max_image_pixels: int = 89_478_485
    max_frames: int = 768
    max_audio_seconds: float = 600.0
    max_items: dict[str, int] = {}
    default_max_items: int = 64
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 5.0
    fetch_timeout_s: float = 30.0
    max_redirects: int = 3
    cache_bytes: int = 256 * 2**20
    max_pending: int = 256

    def limit(self, modality: str) -> int:
        """Most items of a modality in one prompt."""
        return self.max_items.get(modality, self.default_max_items)


class RenderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a render server can be told.

    Attributes:
        model: directory of a Hugging Face checkpoint, or its name on the hub.
        served_model_name: name that clients use; "": `model`.
        host: address to listen on; http_port, grpc_port: 0 picks a free one.
        ec: the store of processed pixels.
        cluster_token: what gRPC callers and the exchange must present.
        api_keys: what HTTP callers must present; empty: nothing.
        protect_metrics: ask for a key on /metrics too.
        max_model_len: tokens of context, 0: the model's.
        processes: of the media pool, 0: one per core.
        max_body_bytes: largest HTTP body.
        chat_template: path of a template that replaces the model's, or "".
        trust_request_chat_template: honour `chat_template` in requests.
        trust_request_mm_kwargs: honour `mm_processor_kwargs` and `media_io_kwargs` in requests.
        enable_mm_embeds: take embeddings in place of media; a part may name one that is held, so
            clients must be trusted.
        default_chat_template_kwargs: beneath those of the request.
        generation_config: take sampling defaults from the model's generation_config.json.
        reasoning_parser, tool_parser: names, `auto`, or "" for none.
    """

    model: str
    served_model_name: str = ""
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    ec: EcConfig = EcConfig()
    cluster_token: str = ""
    api_keys: tuple[str, ...] = ()
    protect_metrics: bool = False
    max_model_len: int = 0
    processes: int = 0
    max_body_bytes: int = 40 * 2**20
    media: MediaConfig = MediaConfig()
    chat_template: str = ""
    trust_request_chat_template: bool = False
    trust_request_mm_kwargs: bool = False
    enable_mm_embeds: bool = False
    default_chat_template_kwargs: dict[str, Any] = {}
    generation_config: bool = True
    reasoning_parser: str = "auto"
    tool_parser: str = "auto"

    @property
    def name(self) -> str:
        """The name that clients use."""
        return self.served_model_name or self.model
