"""The policies for the retention of snapshots."""

from __future__ import annotations

import re
from dataclasses import dataclass

from logstore.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class Retention:
    """A policy. Without a field set, all snapshots stay."""

    newest: int | None = None
    """So many stay of each channel in each branch."""
    powers_of_two: bool = False
    """Those stay that are about 0, 1, 2, 4, 8… behind the end of a branch: at most 2 log2 n, and
    from any place d behind it there is one at most 3 d behind it."""

    @classmethod
    def parse(cls, text: str) -> Retention:
        """Read a policy: `all`, `newest N`, or `powers of two`.

        Raises:
            InvalidOptionError: it is none of them.
        """
        newest = re.fullmatch(r"newest ([1-9]\d*)", text)
        if newest:
            return cls(newest=int(newest[1]))
        if text not in ("all", "powers of two"):
            raise InvalidOptionError(
                f"the retention of snapshots is 'all', 'newest N' or 'powers of two', not {text!r}"
            )
        return cls(powers_of_two=text != "all")

    @property
    def is_all(self) -> bool:
        """Whether every snapshot stays."""
        return self.newest is None and not self.powers_of_two

    def keeps(self, index: int, behind: int) -> bool:
        """Whether a snapshot stays.

        Args:
            index: its number in its branch, from 1.
            behind: how many are due after it, on the shortest way to the end of a branch.
        """
        if self.newest is not None:
            return behind < self.newest
        if self.powers_of_two:
            # The lowest set bit of the index tells how long: what goes never comes back, as
            # it would with distances of exactly a power of two.
            return behind < 2 * (index & -index)
        return True
