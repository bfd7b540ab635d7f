"""What derendering a stream costs beside derendering the same tokens at once.

`python -m benchmarks.derender` derenders answers of 4,096 tokens with a reasoning and a tool
parser, once in one call and once token by token through the object that lives as long as a
request, and prints milliseconds of CPU and their ratio. `--json FILE` writes the figures, `--check`
fails where a bound is not kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.report import Check, exit_status, median, table, write
from protocol.derender import DerenderedDelta
from protocol.openai import ChatCompletionRequest
from protocol.rpc import TokenDelta
from render.derender import HfDerenderer

TOKENS = 4096
TIMES = 2.0
"""Times the cost of all at once that a stream may cost, for an answer of every kind of text."""

_SPECIAL = ("<|im_start|>", "<|im_end|>")
_PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_ROOT = Path(__file__).resolve().parent.parent
_REQUEST = ChatCompletionRequest(
    messages=[],
    tools=[{"type": "function", "function": {"name": "write_file", "parameters": {}}}],
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds of CPU for one answer, medians of the rounds."""

    kind: str
    at_once_ms: float
    streamed_ms: float

    @property
    def times(self) -> float:
        """How many times the cost of all at once a stream costs."""
        return self.streamed_ms / self.at_once_ms


def prose() -> str:
    """Plain English with some markup: this project's own pages."""
    pages = sorted((_ROOT / "docs").glob("*.md"))
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def calls() -> Iterator[str]:
    """Tool calls whose arguments are files of code."""
    for file in itertools.cycle(sorted((_ROOT / "render").glob("*.py"))):
        arguments = {"path": file.name, "overwrite": True, "text": file.read_text(encoding="utf-8")}
        call = {"name": "write_file", "arguments": arguments}
        yield f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def checkpoint(path: Path) -> Tokenizer:
    """The files that a derenderer reads, with a byte-level vocabulary of these texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([prose(), *itertools.islice(calls(), 30)], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in _SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False) for t in _PLAIN])
    tokenizer.save(str(path / "tokenizer.json"))
    return tokenizer


def answers(tokenizer: Tokenizer, tokens: int) -> dict[str, list[int]]:
    """Kind of answer -> its token ids, `tokens` of them."""

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    text = ids(prose())
    called = [token for call in itertools.islice(calls(), 30) for token in ids(call)]
    third = tokens // 3
    reasoned = [*ids("<think>"), *text[:third], *ids("</think>"), *text[third : 2 * third]]
    return {
        "reasoning, text and calls": (reasoned + called)[:tokens],
        "text": text[:tokens],
        "calls": called[:tokens],
    }


def deltas(ids: list[int], size: int) -> list[TokenDelta]:
    """The answer in pieces of `size` tokens."""
    cuts = [ids[at : at + size] for at in range(0, len(ids), size)]
    return [
        *(TokenDelta(token_ids=cut) for cut in cuts[:-1]),
        TokenDelta(token_ids=cuts[-1], finish_reason="length"),
    ]


def derendered(derenderer: HfDerenderer, pieces: list[TokenDelta]) -> list[DerenderedDelta]:
    """What one object makes of them."""
    choice = derenderer.chat(_REQUEST, [])
    return [choice.push(piece) for piece in pieces]


def text_of(out: list[DerenderedDelta]) -> tuple[str, str, str]:
    """Reasoning, content and arguments, for comparing two ways to the same answer."""
    arguments = (call["function"]["arguments"] for one in out for call in one.tool_calls)
    return (
        "".join(one.reasoning for one in out),
        "".join(one.content for one in out),
        "".join(arguments),
    )


def milliseconds(derenderer: HfDerenderer, pieces: list[TokenDelta]) -> float:
    """CPU time of derendering them; each delta is dropped when the next one is made."""
    began = time.thread_time()
    choice = derenderer.chat(_REQUEST, [])
    for piece in pieces:
        choice.push(piece)
    return 1000 * (time.thread_time() - began)


def measure(derenderer: HfDerenderer, kind: str, ids: list[int], rounds: int) -> Figures:
    """One kind of answer, both ways in turn.

    Raises:
        RuntimeError: the two ways give different answers.
    """
    whole, single = deltas(ids, len(ids)), deltas(ids, 1)
    if text_of(derendered(derenderer, whole)) != text_of(derendered(derenderer, single)):
        raise RuntimeError(f"{kind}: a stream gives another answer")
    pairs = [
        (milliseconds(derenderer, whole), milliseconds(derenderer, single)) for _ in range(rounds)
    ]
    return Figures(kind, median(one for one, _ in pairs), median(two for _, two in pairs))


def run(tokens: int, rounds: int) -> list[Figures]:
    """Every kind of answer."""
    with tempfile.TemporaryDirectory() as path:
        tokenizer = checkpoint(Path(path))
        derenderer = HfDerenderer(path, reasoning_parser="qwen3", tool_parser="hermes")
        return [
            measure(derenderer, kind, ids, rounds)
            for kind, ids in answers(tokenizer, tokens).items()
        ]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.derender", description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a bound is not kept")
    asked = parser.parse_args()
    figures = run(asked.tokens, asked.rounds)
    rows = [
        (one.kind, f"{one.at_once_ms:.2f}", f"{one.streamed_ms:.2f}", f"{one.times:.2f}")
        for one in figures
    ]
    print(table((f"{asked.tokens} tokens", "at once ms", "streamed ms", "times"), rows))
    checks = [Check(f"times at once, {figures[0].kind}", figures[0].times, TIMES, at_least=False)]
    if asked.json is not None:
        settings = {"tokens": asked.tokens, "rounds": asked.rounds}
        write(asked.json, "derender", settings, [asdict(one) for one in figures], checks)
    return exit_status(checks, enforced=asked.check)


if __name__ == "__main__":
    sys.exit(main())
