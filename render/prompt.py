"""A prompt's token ids: truncation, and the expansion of media placeholders (contract §9.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from protocol.errors import InvalidRequest
from protocol.features import PlaceholderRange
from render.families.base import Placeholder, Run


class Expanded(NamedTuple):
    """A prompt whose placeholders are as long as their items.

    Attributes:
        token_ids: the prompt.
        ranges: modality -> a range per item, in order.
    """

    token_ids: list[int]
    ranges: dict[str, list[PlaceholderRange]]


def kept(
    ids: Sequence[int],
    keep: int,
    side: Literal["left", "right"],
    placeholders: Mapping[str, Placeholder],
) -> slice:
    """The part of a prompt that remains when it is cut to `keep` tokens.

    Args:
        side: the end that is cut off.

    Raises:
        InvalidRequest: a media placeholder would be cut off.
    """
    if len(ids) <= keep:
        return slice(None)
    at = len(ids) - keep if side == "left" else keep
    cut = ids[:at] if side == "left" else ids[at:]
    for modality, placeholder in placeholders.items():
        if placeholder.token_id in cut:
            raise InvalidRequest(
                f"truncation would cut off the {modality} placeholder", "truncate_prompt_tokens"
            )
    return slice(at, None) if side == "left" else slice(at)


def expand(
    ids: Sequence[int],
    placeholders: Mapping[str, Placeholder],
    items: Mapping[str, Sequence[tuple[Run, ...]]],
) -> Expanded:
    """Replace the i-th placeholder of each modality by the tokens of its i-th item.

    Raises:
        InvalidRequest: the prompt does not have a placeholder per item.
    """
    modality_of = {placeholders[modality].token_id: modality for modality in items}
    out: list[int] = []
    ranges: dict[str, list[PlaceholderRange]] = {modality: [] for modality in items}
    position = 0
    for index in [i for i, token in enumerate(ids) if token in modality_of]:
        modality = modality_of[ids[index]]
        done = ranges[modality]
        if len(done) == len(items[modality]):
            raise _mismatch(modality, len(items[modality]))
        out += ids[position:index]
        done.append(_range(len(out), items[modality][len(done)]))
        for run in items[modality][len(done) - 1]:
            out += [run.token_id] * run.repeat
        position = index + 1
    out += ids[position:]
    for modality, done in ranges.items():
        if len(done) != len(items[modality]):
            raise _mismatch(modality, len(items[modality]))
    return Expanded(out, ranges)


def joined(expanded: Expanded, joins: Sequence[tuple[int, int, int]]) -> Expanded:
    """The prompt with pairs of tokens made one, kind by kind, as the tokenizer would have.

    A token that two items come to share belongs to the first.
    """
    for first, second, both in joins:
        ids = expanded.token_ids
        out: list[int] = []
        place: list[int] = []  # of each old token in the new prompt
        for token in ids:
            if token == second and out and out[-1] == first:
                out[-1] = both
            else:
                out.append(token)
            place.append(len(out) - 1)
        ranges: dict[str, list[PlaceholderRange]] = {}
        for modality, old in expanded.ranges.items():
            taken = 0
            ranges[modality] = []
            for one in old:
                start = place[one.offset]
                moved = _without(one, taken - start) if start < taken else one
                start = max(start, taken)
                taken = place[one.offset + one.length - 1] + 1
                ranges[modality].append(PlaceholderRange(start, taken - start, moved.is_embed))
        expanded = Expanded(out, ranges)
    return expanded


def _without(one: PlaceholderRange, count: int) -> PlaceholderRange:
    """The range without its first tokens, which take no embedding."""
    spans = tuple((start - count, length) for start, length in one.is_embed or ())
    return PlaceholderRange(one.offset + count, one.length - count, spans)


def _range(offset: int, runs: tuple[Run, ...]) -> PlaceholderRange:
    length = sum(run.repeat for run in runs)
    if all(run.embeds for run in runs):
        return PlaceholderRange(offset, length)
    spans: list[tuple[int, int]] = []
    at = 0
    for run in runs:
        if run.embeds:
            spans.append((at, run.repeat))
        at += run.repeat
    return PlaceholderRange(offset, length, tuple(_merged(spans)))


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, length in spans:
        if out and out[-1][0] + out[-1][1] == start:
            out[-1] = (out[-1][0], out[-1][1] + length)
        else:
            out.append((start, length))
    return out


def _mismatch(modality: str, count: int) -> InvalidRequest:
    return InvalidRequest(
        f"the chat template did not make exactly one placeholder for each of the {count} "
        f"{modality} item(s)",
        "messages",
    )
