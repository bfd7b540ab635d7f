"""A render server under mixed and hostile input for a long time: no 5xx, flat memory.

`python -m benchmarks.soak_render` starts `triptych render` on the bundled demo model and asks it
with 16 clients for ten minutes (`--seconds`): chats with and without pictures, media that are
broken, too large or lead inside, deep and endless JSON, wrong states of streams, bodies cut off in
the middle, connections that go away. It fails where an answer is a 5xx or never comes, or where the
memory of the server's processes (PSS) grows by more than 5 % between the warm-up and the end.
`--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import collections
import contextlib
import functools
import io
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from PIL import Image

from benchmarks.report import Check, exit_status, median, table, write
from benchmarks.usage import pss_bytes

CLIENTS = 16
GROWTH = 0.05
"""How much the memory may grow between the warm-up and the end, as a share."""

_ROOT = Path(__file__).resolve().parent.parent
_CACHE_BYTES = 8 * 2**20
"""Of the server's cache: small, so that it is full when the warm-up is over."""

_CHAT, _COMPLETION = "/v1/chat/completions/render", "/v1/completions/render"
_WORDS = (
    "red", "blue", "circle", "<|image_pad|>", "<|im_end|>", "日本", "\x00", "\ud7ff", "<tool_call>",
    "{", "]",
)  # fmt: skip
_HOSTS = (
    "127.0.0.1", "2130706433", "0177.0.0.1", "[::ffff:127.0.0.1]", "169.254.169.254", "localhost",
    "10.0.0.1", "[::1]", "user:pass@example.org", "0x7f.1", "",
)  # fmt: skip


@functools.cache
def _bomb() -> bytes:
    """A small file of 900 million pixels."""
    out = io.BytesIO()
    Image.new("1", (30_000, 30_000)).save(out, "PNG")
    return out.getvalue()


@dataclass(slots=True)
class Seen:
    """What the clients saw.

    Attributes:
        statuses: HTTP status -> answers.
        kinds: kind of request -> requests.
        faults: what must not be, in words.
    """

    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    faults: list[str] = field(default_factory=list)


Request = tuple[str, bytes]
"""A path and a body."""


class Hostility:
    """Makes requests of every kind; `dice` decides."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._pictures = np.random.default_rng(seed)
        self.kinds: dict[str, Callable[[], Request]] = {
            "text": self._text, "picture": self._picture, "known picture": self._known,
            "no tensors": self._no_tensors, "broken picture": self._broken, "bomb": self._bomb,
            "inside": self._inside, "deep": self._deep, "long": self._long, "form": self._form,
            "schema": self._schema, "derender": self._derender, "state": self._state,
            "bytes": self._bytes, "tokenize": self._tokenize, "completion": self._completion,
        }  # fmt: skip

    def next(self) -> tuple[str, Request]:
        """A kind and a request of it."""
        kind = self._dice.choice(list(self.kinds))
        return kind, self.kinds[kind]()

    def _chat(self, *parts: Any, **fields: Any) -> Request:
        return _CHAT, json.dumps(
            {"messages": [{"role": "user", "content": list(parts)}], **fields}
        ).encode()

    def _words(self, most: int = 60) -> str:
        return " ".join(self._dice.choices(_WORDS, k=self._dice.randint(1, most)))

    def _text(self) -> Request:
        return self._chat(self._words())

    def _image(self, data: bytes, kind: str = "image/png") -> dict[str, Any]:
        url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}

    def _file(self, width: int, height: int, form: str = "PNG") -> bytes:
        pixels = self._pictures.integers(0, 255, (height, width, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, form)
        return out.getvalue()

    def _picture(self) -> Request:
        size = self._dice.randint(8, 300), self._dice.randint(8, 300)
        form = self._dice.choice(["PNG", "JPEG", "WEBP", "GIF", "TIFF"])
        return self._chat(self._image(self._file(*size, form)), self._words(5))

    def _known(self) -> Request:
        flat = Image.new("RGB", (64, 64), self._dice.choice(["red", "blue", "green"]))
        out = io.BytesIO()
        flat.save(out, "PNG")
        return self._chat(*[self._image(out.getvalue())] * self._dice.randint(1, 4))

    def _no_tensors(self) -> Request:
        return self._chat(self._image(self._file(64, 64)), mm_payload="none")

    def _broken(self) -> Request:
        data = bytearray(self._file(64, 64, self._dice.choice(["PNG", "JPEG", "WEBP"])))
        for _ in range(self._dice.randint(1, 30)):
            data[self._dice.randrange(len(data))] = self._dice.randrange(256)
        return self._chat(self._image(bytes(data[: self._dice.randrange(1, len(data))])))

    def _bomb(self) -> Request:
        return self._chat(self._image(_bomb()))

    def _inside(self) -> Request:
        host = self._dice.choice(_HOSTS)
        scheme = self._dice.choice(["http", "https", "file", "ftp", "data", "HTTP"])
        url = f"{scheme}://{host}/{self._dice.randrange(99)}"
        return self._chat({"type": "image_url", "image_url": {"url": url}})

    def _deep(self) -> Request:
        depth = self._dice.choice([50, 900, 5_000])
        return _CHAT, b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"

    def _long(self) -> Request:
        return self._chat("word " * self._dice.choice([3_000, 60_000]))

    def _form(self) -> Request:
        forms: list[dict[str, Any]] = [
            {"response_format": {"type": "json_object"}}, {"response_format": {"type": "xml"}},
            {"structured_outputs": {"regex": "("}}, {"tool_choice": "required"},
            {"tools": [{"function": {"name": "f"}}], "tool_choice": "required"},
            {"tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "function"}},
        ]  # fmt: skip
        return self._chat("x", **self._dice.choice(forms))

    def _schema(self) -> Request:
        values: list[Any] = [None, -1, 2**70, 1.5, "x", [], {}, True, "\ud800"]
        names = [
            "n",
            "temperature",
            "stop",
            "max_tokens",
            "messages",
            "tools",
            "cache_salt",
            "seed",
        ]
        return self._chat("x", **{self._dice.choice(names): self._dice.choice(values)})

    def _derender(self) -> Request:
        ids = [self._dice.randrange(520) for _ in range(self._dice.randint(0, 3_000))]
        choice = {"index": 0, "token_ids": ids, "finish_reason": "stop"}
        response = {"request_id": "g", "choices": [choice]}
        return "/v1/chat/completions/derender", json.dumps(
            {"generate_response": response, "chat_request": {"messages": []}}
        ).encode()

    def _state(self) -> Request:
        state = self._dice.choice(
            [{}, {"choice": {"text": {"pending": [255] * 9}}}, {"choice": [1]}, {"role_sent": 5}]
        )
        chunk = {"request_id": "g", "choices": [{"index": 0, "token_ids": [5, 6]}]}
        return "/v1/chat/completions/derender", json.dumps(
            {"stream": True, "generate_chunk": chunk, "stream_state": state}
        ).encode()

    def _bytes(self) -> Request:
        size = self._dice.choice([0, 1, 100, 10_000])
        path = self._dice.choice([_CHAT, _COMPLETION, "/tokenize", "/v1/messages/render"])
        return path, self._dice.randbytes(size)

    def _tokenize(self) -> Request:
        body = {"prompt": self._words(500), "return_token_strs": True}
        return "/tokenize", json.dumps(body).encode()

    def _completion(self) -> Request:
        prompts = [self._words(20), [1, 2, 3], [[1], [2]], ["a", "b"], [-1], [2**40], []]
        return _COMPLETION, json.dumps({"prompt": self._dice.choice(prompts)}).encode()


async def client(url: str, seed: int, ends: float, seen: Seen) -> None:
    """One client: asks, and now and then goes away before it is answered."""
    dice, hostility = random.Random(seed), Hostility(seed)
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as session:
        while time.monotonic() < ends:
            kind, (path, body) = hostility.next()
            seen.kinds[kind] += 1
            if dice.random() < 0.03:
                await _go_away(url, path, body)
                continue
            try:
                answer = await session.post(path, content=body)
            except httpx.HTTPError as error:
                seen.faults.append(f"{kind}: {type(error).__name__}")
                continue
            seen.statuses[answer.status_code] += 1
            if answer.status_code >= 500:
                seen.faults.append(f"{kind}: {answer.status_code} {answer.text[:200]}")


async def _go_away(url: str, path: str, body: bytes) -> None:
    """Send half of a request, or all of it, and close the connection."""
    address = httpx.URL(url)
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(address.host, address.port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@contextlib.contextmanager
def server() -> Iterator[tuple[str, psutil.Process]]:
    """`triptych render` in a process of its own, and its address."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "render.yaml"
        config.write_text(f"media: {{cache_bytes: {_CACHE_BYTES}}}\n")
        command = [
            sys.executable, "-m", "deploy.cli", "render", "demo", "--config", str(config),
            "--port", str(port), "--grpc-port", "0", "--log-level", "ERROR",
        ]  # fmt: skip
        with subprocess.Popen(command, cwd=_ROOT) as child:
            try:
                yield f"http://127.0.0.1:{port}", psutil.Process(child.pid)
            finally:
                child.terminate()
                try:
                    child.wait(60)
                except subprocess.TimeoutExpired:
                    child.kill()


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def up(url: str) -> None:
    """Wait until the server answers.

    Raises:
        RuntimeError: it does not.
    """
    async with httpx.AsyncClient(base_url=url) as session:
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if (await session.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(0.2)
    raise RuntimeError("the server did not start")


def memory(process: psutil.Process) -> int:
    """PSS of a process and its children, in bytes."""
    return sum(pss_bytes(one.pid) for one in [process, *process.children(recursive=True)])


async def watch(process: psutil.Process, ends: float, period_s: float) -> list[tuple[float, int]]:
    """Seconds since the beginning and memory, until the end."""
    began, out = time.monotonic(), list[tuple[float, int]]()
    while (now := time.monotonic()) < ends:
        out.append((now - began, memory(process)))
        await asyncio.sleep(period_s)
    return out


async def soak(
    url: str, process: psutil.Process, seconds: float, clients: int, seed: int
) -> tuple[Seen, list[tuple[float, int]]]:
    """All clients for that long, and the memory meanwhile."""
    await up(url)
    seen, ends = Seen(), time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch(process, ends, max(0.5, seconds / 300)))
        for number in range(clients):
            tasks.create_task(client(url, seed + number, ends, seen))
    samples = watching.result()
    return seen, samples


def growth(samples: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Memory after the warm-up and at the end: medians of the second and the last fifth."""
    last = samples[-1][0]
    warm = [size for at, size in samples if 0.2 * last <= at < 0.4 * last]
    end = [size for at, size in samples if at >= 0.8 * last]
    return median(warm), median(end)


def checks_of(seen: Seen, samples: Sequence[tuple[float, int]]) -> list[Check]:
    """What must hold."""
    warm, end = growth(samples)
    bad = sum(count for status, count in seen.statuses.items() if status >= 500)
    lost = len(seen.faults) - bad
    return [
        Check("answers that are 5xx", bad, 0, at_least=False),
        Check("requests without an answer", lost, 0, at_least=False),
        Check("answers that are 200", seen.statuses[200], 1),
        Check("memory at the end over that after the warm-up", end / warm, 1 + GROWTH, False),
    ]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak_render", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    with server() as (url, process):
        seen, samples = asyncio.run(soak(url, process, asked.seconds, asked.clients, asked.seed))
        return tell(asked, seen, samples)


def tell(asked: argparse.Namespace, seen: Seen, samples: list[tuple[float, int]]) -> int:
    """Print and write what was seen; the exit status."""
    total = sum(seen.statuses.values())
    print(f"{total} answers, {total / asked.seconds:.0f} a second")
    print(
        table(("status", "answers"), [(str(s), str(n)) for s, n in sorted(seen.statuses.items())])
    )
    print(table(("kind", "requests"), [(kind, str(n)) for kind, n in sorted(seen.kinds.items())]))
    mib = [
        (f"{at:.0f} s", f"{size / 2**20:.0f}")
        for at, size in samples[:: max(1, len(samples) // 10)]
    ]
    print(table(("after", "PSS MiB"), mib))
    for fault in seen.faults[:10]:
        print(fault, file=sys.stderr)
    checks = checks_of(seen, samples)
    if asked.json is not None:
        settings = {"seconds": asked.seconds, "clients": asked.clients, "seed": asked.seed}
        figures = {**asdict(seen), "memory": samples}
        write(asked.json, "soak_render", settings, figures, checks)
    return exit_status(checks, enforced=True)


if __name__ == "__main__":
    sys.exit(main())
