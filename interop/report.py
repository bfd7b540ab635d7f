"""What a family's run found."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from interop.cases import Case
from interop.difference import Difference
from interop.wanted import rule


class Unwanted(NamedTuple):
    """A difference that no rule covers."""

    case: Case
    difference: Difference


class Report:
    """Counts of one family.

    Attributes:
        requests, equal: how many were compared, and how many of them were equal.
        wanted: name of a rule -> requests that it covered.
        unwanted: what nothing covered.
    """

    def __init__(self, family: str) -> None:
        self.family = family
        self.requests = 0
        self.equal = 0
        self.wanted: Counter[str] = Counter()
        self.unwanted: list[Unwanted] = []

    def add(self, case: Case, differences: list[Difference]) -> None:
        """One compared request."""
        self.requests += 1
        self.equal += not differences
        names = set()
        for difference in differences:
            found = rule(case, difference)
            if found is None:
                self.unwanted.append(Unwanted(case, difference))
            else:
                names.add(found.name)
        self.wanted.update(names)

    @property
    def failed(self) -> bool:
        return bool(self.unwanted)

    def show(self, most: int, seconds: float) -> None:
        """Print it, with the first `most` unwanted differences of each path."""
        wrong = len({one.case.number for one in self.unwanted})
        print(
            f"{self.family}: {self.requests} requests, {self.equal} equal, "
            f"{self.requests - self.equal - wrong} with wanted differences only, "
            f"{wrong} with unwanted ones ({seconds:.0f} s)"
        )
        for name, count in self.wanted.most_common():
            print(f"    wanted    {count:4} {name}")
        shown: dict[str, int] = defaultdict(int)
        for case, difference in self.unwanted:
            shown[difference.path] += 1
            if shown[difference.path] <= most:
                print(f"    UNWANTED  #{case.number} ({case.kind}) {difference}")
        for path, count in shown.items():
            if count > most:
                print(f"    UNWANTED  and {count - most} more at {path}")
        print(flush=True)
