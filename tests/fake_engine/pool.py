"""KV memory: pages owned by requests, pages owned by the tree, and the rest free."""

from __future__ import annotations

from tests.fake_engine.kv_events import EventRecorder
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.radix import TOKEN_BYTES, Match, RadixCache
from tests.fake_engine.request import Request

RESERVE = 0.1
"""Share of the tokens still to come that admission keeps room for: where SGLang's new_token_ratio settles."""
CLIP_NEW_TOKENS = 4_096


class Pool:
    def __init__(self, options: FakeEngineOptions) -> None:
        self._page = options.page_size
        self.capacity = options.max_total_tokens // options.page_size
        self.events = EventRecorder(options.page_size, options.version) if options.kv_events_config else None
        self.tree = RadixCache(options.page_size, self.events, options.salts)
        self.owned = 0

    @property
    def free(self) -> int:
        return self.capacity - self.tree.pages - self.owned

    @property
    def used_tokens(self) -> int:
        """What nothing could evict now."""
        return (self.owned + self.tree.locked_pages) * self._page

    def reserve(self, request: Request) -> int:
        """Pages a running request is expected to need still."""
        to_come = min(request.sampling.max_new_tokens - len(request.output), CLIP_NEW_TOKENS)
        return self._pages(int(to_come * RESERVE))

    def admit(self, request: Request, kept_back: int | None) -> bool:
        """Lock the cached prefix and count it filled, unless the rest cannot fit now beside `kept_back` pages.

        None admits what fits into the memory at all: a request that is alone takes what there is.
        """
        match = self.tree.match(request.namespace, request.reusable)
        self.tree.lock(match.node)
        need = self._pages(request.fill_tokens) - match.pages
        if kept_back is not None:
            need += self.reserve(request) + 1 + kept_back
        if need > self.free + self.tree.evictable_pages:
            self.tree.unlock(match.node)
            return False
        request.node = match.node
        request.tree_pages = match.pages
        request.filled = match.pages * self._page
        return True

    def grow(self, request: Request, tokens: int) -> bool:
        """Give the request pages for its first `tokens` tokens, evicting if it must. False: none to be had."""
        missing = self._pages(tokens) - request.tree_pages - request.own_pages
        if missing <= 0:
            return True
        if missing > self.free:
            self.tree.evict(missing - self.free)
            if missing > self.free:
                return False
        request.own_pages += missing
        self.owned += missing
        return True

    def share(self, request: Request, ids: bytes) -> None:
        """Put the whole pages of `ids`, which the request has computed, into the tree; duplicates are freed."""
        inserted: Match = self.tree.insert(request.namespace, ids)
        self.tree.lock(inserted.node)
        if request.node is not None:
            self.tree.unlock(request.node)
        request.node = inserted.node
        whole = len(ids) // TOKEN_BYTES // self._page
        moved = whole - request.tree_pages
        request.own_pages -= moved
        self.owned -= moved
        request.tree_pages = whole

    def release(self, request: Request) -> None:
        """Free what the request owns and unlock what it shares."""
        self.owned -= request.own_pages
        request.own_pages = 0
        request.tree_pages = 0
        if request.node is not None:
            self.tree.unlock(request.node)
            request.node = None

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page)
