"""The differences from the reference that are wanted, each with its reason; no other passes.

A rule names the paths of `interop.difference.Difference` that it covers, and may look at the
request and at both values. A difference that no rule covers fails the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from interop.cases import Case
from interop.difference import Difference

Test = Callable[[Case, Difference], bool]


class Wanted(NamedTuple):
    """A rule.

    Attributes:
        name: for the report.
        reason: why ours is as it is.
        paths: regular expression that a difference's whole path matches.
        test: what else must hold.
    """

    name: str
    reason: str
    paths: str
    test: Test = lambda _case, _difference: True


def rule(case: Case, difference: Difference) -> Wanted | None:
    """The rule that covers a difference, or None."""
    for one in WANTED:
        if re.fullmatch(one.paths, difference.path) and one.test(case, difference):
            return one
    return None


INTERNAL = frozenset(
    {"output_kind", "skip_clone", "output_text_buffer_length", "skip_reading_prefix_cache"}
)
"""Sampling parameters that are not compared: whoever generates overwrites them or, the last,
derives it from `prompt_logprobs`."""

NOTHING: dict[str, tuple[Any, ...]] = {
    "stop": ([],), "stop_token_ids": ([],), "bad_words": ([],), "extra_args": ({},),
}  # fmt: skip
"""Sampling parameters -> values that mean the same as null to every receiver."""

WANTED: tuple[Wanted, ...] = ()
