"""The prefix cache: a radix tree over whole pages of token ids, with locks and LRU eviction of leaves.

Ids are bytes, four to a token, so that comparing, slicing and hashing a page run at the speed of memory. The tree
counts in pages; who may hold how many is the scheduler's concern (`scheduler.py`).
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass, field
from itertools import count

from tests.fake_engine.kv_events import EventRecorder, chain, first_digest

TOKEN_BYTES = 4

Namespace = tuple[str | None, str | None]
"""(cache_salt, extra_key). Requests of two namespaces never share a page."""

Slot = bytes | tuple[Namespace, bytes]
"""Where a node hangs on its parent: its first page, below the root with the namespace."""


@dataclass(eq=False, slots=True)
class Node:
    key: bytes
    parent: Node | None
    slot: Slot = b""
    children: dict[Slot, Node] = field(default_factory=dict)
    locks: int = 0
    used: int = 0
    digests: list[bytes] = field(default_factory=list)
    """Of its pages, if events are told."""

    def __lt__(self, other: Node) -> bool:
        return self.used < other.used


@dataclass(frozen=True, slots=True)
class Match:
    pages: int
    node: Node


class RadixCache:
    """Tells `events`, if there are any to be told, what it caches and drops."""

    def __init__(self, page_size: int, events: EventRecorder | None = None, salts: bool = True) -> None:
        self._events = events
        self._salts = salts
        self._page = page_size * TOKEN_BYTES
        self._clock = count(1)
        self._leaves: set[Node] = set()
        self.pages = 0
        self.locked_pages = 0
        self.evicted_pages = 0
        self.root = Node(b"", None)
        if events is not None:
            events.cleared()  # as a real one does when it is made

    @property
    def evictable_pages(self) -> int:
        return self.pages - self.locked_pages

    def match(self, namespace: Namespace, ids: bytes) -> Match:
        """Longest cached prefix of `ids`, in whole pages. Marks it as used; splits a node the match ends within."""
        node, offset, now = self.root, 0, next(self._clock)
        while (child := node.children.get(self._slot(node, namespace, ids, offset))) is not None:
            child.used = now
            shared = self._shared(child.key, ids, offset)
            offset += shared
            if shared < len(child.key):
                node = self._split(child, shared)
                break
            node = child
        return Match(offset // self._page, node)

    def insert(self, namespace: Namespace, ids: bytes) -> Match:
        """Cache the whole pages of `ids`. The match tells how many of them already were, and the last one's node."""
        whole = len(ids) // self._page * self._page
        found = self.match(namespace, ids[:whole])
        offset = found.pages * self._page
        if offset == whole:
            return found
        slot = self._slot(found.node, namespace, ids, offset)
        leaf = found.node.children[slot] = Node(ids[offset:whole], found.node, slot, used=next(self._clock))
        self._leaves.discard(found.node)
        self._leaves.add(leaf)
        self.pages += len(leaf.key) // self._page
        if self._events is not None:
            self._tell(self._events, leaf, namespace[0])
        return Match(found.pages, leaf)

    def lock(self, node: Node) -> None:
        """Keep the path to `node` from eviction until `unlock`."""
        for step in self._path(node):
            if step.locks == 0:
                self.locked_pages += len(step.key) // self._page
            step.locks += 1

    def unlock(self, node: Node) -> None:
        for step in self._path(node):
            step.locks -= 1
            if step.locks == 0:
                self.locked_pages -= len(step.key) // self._page

    def evict(self, pages: int) -> int:
        """Drop least recently used leaves until `pages` are freed or none is left. Says how many were freed."""
        heap = [leaf for leaf in self._leaves if leaf.locks == 0]
        heapq.heapify(heap)
        freed = 0
        while freed < pages and heap:
            leaf = heapq.heappop(heap)
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.slot]
            self._leaves.remove(leaf)
            if self._events is not None:
                self._events.removed(leaf.digests)
            freed += len(leaf.key) // self._page
            if not parent.children and parent is not self.root:
                self._leaves.add(parent)
                if parent.locks == 0:
                    heapq.heappush(heap, parent)
        self.pages -= freed
        self.evicted_pages += freed
        return freed

    def clear(self) -> None:
        assert self.locked_pages == 0, "only an idle engine is flushed"
        self.root = Node(b"", None)
        self._leaves.clear()
        self.pages = 0
        if self._events is not None:
            self._events.cleared()

    def _tell(self, events: EventRecorder, leaf: Node, salt: str | None) -> None:
        parent = leaf.parent.digests[-1] if leaf.parent is not None and leaf.parent.digests else None
        before = parent if parent is not None else first_digest(salt, self._salts)
        leaf.digests = chain(before, leaf.key, self._page)
        events.stored(parent, leaf.digests, array("I", leaf.key).tolist(), salt)

    def _slot(self, node: Node, namespace: Namespace, ids: bytes, offset: int) -> Slot:
        first = ids[offset : offset + self._page]
        return (namespace, first) if node is self.root else first

    def _shared(self, key: bytes, ids: bytes, offset: int) -> int:
        """Bytes of whole pages that `key` and `ids[offset:]` begin with alike: galloping, then halving."""
        low, step = 0, self._page
        limit = min(len(key), (len(ids) - offset) // self._page * self._page)
        while low < limit:
            high = min(low + step, limit)
            if key[low:high] != ids[offset + low : offset + high]:
                while high - low > self._page:
                    middle = low + (high - low) // self._page // 2 * self._page
                    if key[low:middle] == ids[offset + low : offset + middle]:
                        low = middle
                    else:
                        high = middle
                return low
            low, step = high, step * 2
        return limit

    def _split(self, node: Node, at: int) -> Node:
        parent = node.parent
        assert parent is not None
        upper = Node(node.key[:at], parent, node.slot, locks=node.locks, used=node.used)
        parent.children[node.slot] = upper
        node.key, node.parent, node.slot = node.key[at:], upper, node.key[at : at + self._page]
        upper.children[node.slot] = node
        pages = at // self._page
        upper.digests, node.digests = node.digests[:pages], node.digests[pages:]
        return upper

    def _path(self, node: Node) -> list[Node]:
        path: list[Node] = []
        step: Node | None = node
        while step is not None and step is not self.root:
            path.append(step)
            step = step.parent
        return path
