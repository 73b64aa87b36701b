"""The KV blocks of the reference."""

from __future__ import annotations

from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request


class Blocks:
    """The pool of KV blocks: which are free, who holds them, and which content can be shared."""

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache) -> None:
        self.num_blocks, self.block_size, self.cache = num_blocks, block_size, cache
        self.free = list(range(num_blocks))  # taken from the head
        self.references = [0] * num_blocks
        self.content: dict[int, tuple[int, ...]] = {}  # block: all tokens up to its end; oldest registration first

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self.free)

    def lookup(self, request: Request) -> list[int]:
        """Cached blocks of the longest prefix; never the last token, for something must be computed."""
        hits: list[int] = []
        for end in range(self.block_size, request.num_tokens, self.block_size):
            same = [block for block, content in self.content.items() if content == tuple(request._tokens[:end])]
            if not same:
                break
            hits.append(same[-1] if self.cache.duplicates == "newest" else same[0])
        return hits

    def needed(self, request: Request, num_tokens: int) -> int:
        """Free blocks it takes to hold so many tokens; a hit that somebody holds costs none."""
        hits = [] if request.is_resident else self.lookup(request)
        missing = -(-num_tokens // self.block_size) - len(request.block_table)
        return max(missing, len(hits)) - sum(self.references[block] > 0 for block in hits)

    def grow(self, request: Request, hits: list[int], num_tokens: int) -> None:
        """Adopt hits, then take blocks until so many tokens fit."""
        for block in hits:
            if not self.references[block]:
                self.free.remove(block)
            self.references[block] += 1
        request.block_table.extend(hits)
        while len(request.block_table) * self.block_size < num_tokens:
            block = self.free.pop(0)
            self.content.pop(block, None)
            self.references[block] = 1
            request.block_table.append(block)

    def shrink(self, request: Request, num_blocks: int) -> None:
        """Give blocks back, last to first, until so many are left."""
        while len(request.block_table) > num_blocks:
            block = request.block_table.pop()
            self.references[block] -= 1
            if not self.references[block]:
                is_next = self.cache.reuse == "uncached_first" and block not in self.content
                self.free.insert(0 if is_next else len(self.free), block)

    def register(self, request: Request, start: int, end: int) -> list[int]:
        """Share the blocks that are full once tokens ``start`` to ``end`` are computed."""
        full = range(start // self.block_size, end // self.block_size) if self.cache.enabled else range(0)
        for i in full:
            self.content[request.block_table[i]] = tuple(request._tokens[: (i + 1) * self.block_size])
        return [request.block_table[i] for i in full]
