"""What is taken to be cached because it was sent there: for replicas that do not tell, or have not told everything."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class RoutedPrefixes:
    """Prefixes by fingerprint, the least recently sent dropped first, and of one prompt the longest first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """How many there may be."""
        self._prefixes: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prefixes)

    def add(self, keys: Sequence[int]) -> None:
        """The fingerprints of one prompt's prefixes, shortest first."""
        prefixes = self._prefixes
        for key in reversed(keys[: self.limit]):
            prefixes[key] = None
            prefixes.move_to_end(key)
        while len(prefixes) > self.limit:
            prefixes.popitem(last=False)

    def depth(self, keys: Sequence[int]) -> int:
        """How many of the prompt's prefixes are in it: whoever has one has all that are shorter."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in self._prefixes:
                low = middle
            else:
                high = middle - 1
        return low

    def clear(self) -> None:
        self._prefixes.clear()
