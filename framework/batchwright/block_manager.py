"""KV blocks: who holds them, and which content can be shared.

A full block is identified by the hash of its tokens chained with the hash of the block before it, so equal hashes mean
equal prefixes. A hit is confirmed on the tokens themselves. Each full block of a request is hashed once and the hash
kept with the request, through preemptions too. Block ids say nothing of order; block tables do.
"""

from __future__ import annotations

import struct
from array import array
from itertools import takewhile

from xxhash import xxh3_64_intdigest

from batchwright.errors import ConfigError
from batchwright.free_list import FreeList
from batchwright.prefix_cache import PrefixCache
from batchwright.request import RESIDENT, Request

_LOG_LIMIT = 8192
_TOKEN_BYTES = array("i").itemsize
UNSHARED = 2**62
"""Number of registered blocks of a request whose hash collided: more than it can have, so it registers no more."""
_STRIDE = 256
"""Blocks that a look-up takes at once, after the first: few enough to stop early, many enough to be fast."""


class BlockManager:
    """The pool of KV blocks.

    Attributes:
        num_blocks: blocks of the pool.
        block_size: tokens of a block.
        cache: settings of the prefix cache.

    Raises:
        ConfigError: the pool is empty, or the block size below 1.
    """

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache | None = None) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.cache = cache if cache is not None else PrefixCache()
        self._enabled = self.cache.enabled
        self._newest = self.cache.duplicates == "newest"
        self._uncached_first = self.cache.reuse == "uncached_first"
        self._split = struct.Struct(f"{block_size * _TOKEN_BYTES}s").iter_unpack
        self._free = FreeList(num_blocks)
        self._references = [0] * num_blocks
        self._hash_of: list[int | None] = [None] * num_blocks
        self._prefix_of: list[int | None] = [None] * num_blocks  # hash of what comes before the block
        self._tokens_of: list[bytes] = [b""] * num_blocks
        self._answering: dict[int, int] = {}  # hash -> the block that answers look-ups
        self._others: dict[int, dict[int, None]] = {}  # hash -> further blocks with that content, oldest first
        # What changed since a look-up: hashes added (a count), and hashes whose answering block went or changed
        # (a log; position 0 of the list is number _log_start). A waiting request looks at the changes, not again at
        # its whole prompt.
        self._num_added = 0
        self._log: list[int] = []
        self._log_start = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds; they may still hold cached content."""
        return self._free.count

    def can_allocate(self, request: Request, num_tokens: int) -> bool:
        """Whether the free blocks suffice for a waiting request to hold ``num_tokens`` tokens."""
        hits = self.lookup(request)
        total = max(-(-num_tokens // self.block_size), len(hits))
        if total <= self._free.count:
            return True
        if total - len(hits) > self._free.count:
            return False
        return total - self._num_held(hits) <= self._free.count

    def allocate(self, request: Request, num_tokens: int) -> None:
        """Give a waiting request its prefix hits and blocks for ``num_tokens`` tokens; ``can_allocate`` first."""
        hits = self.lookup(request)
        references = self._references
        self._free.remove_all([block for block in hits if not references[block]])
        for block in hits:
            references[block] += 1
        request.block_table.extend(hits)
        request._num_registered = len(hits)
        request._room = len(hits) * self.block_size
        request._hits, request._hit_key = [], None
        missing = -(-num_tokens // self.block_size) - len(hits)
        if missing > 0:
            self.append(request, missing)

    def can_append(self, request: Request, num_tokens: int) -> bool:
        """Whether the free blocks suffice for a resident to hold ``num_tokens`` tokens."""
        return num_tokens - request._room <= self._free.count * self.block_size

    def append(self, request: Request, num_blocks: int = 1) -> None:
        """Give a resident further blocks; ``can_append`` first."""
        take, hash_of, references = self._free.take, self._hash_of, self._references
        for _ in range(num_blocks):
            block = take()
            if hash_of[block] is not None:
                self.unregister(block)
            references[block] = 1
            request.block_table.append(block)
        request._room += num_blocks * self.block_size

    def take_back(self, request: Request, num_blocks: int) -> None:
        """Undo ``append``: the last blocks of a resident become free, last first."""
        for _ in range(num_blocks):
            self._release(request.block_table.pop())
        request._room -= num_blocks * self.block_size

    def deallocate(self, request: Request) -> None:
        """Free all blocks of a request, last to first; shared ones stay with the others that hold them."""
        for block in reversed(request.block_table):
            self._release(block)
        request.block_table.clear()
        request._room = request._num_registered = 0

    def _release(self, block: int) -> None:
        references = self._references
        references[block] -= 1
        if not references[block]:
            if self._uncached_first and self._hash_of[block] is None:
                self._free.put_first(block)
            else:
                self._free.put_last(block)

    def blocks_needed(self, request: Request, num_tokens: int) -> int:
        """Free blocks that a request would take to hold ``num_tokens`` tokens; free hits cost their block."""
        total = -(-num_tokens // self.block_size)
        if request._state == RESIDENT:
            return max(0, total - len(request.block_table))
        hits = self.lookup(request)
        return max(total, len(hits)) - self._num_held(hits)

    def _num_held(self, hits: list[int]) -> int:
        return len(hits) - list(map(self._references.__getitem__, hits)).count(0)

    # Prefix cache -------------------------------------------------------------------------------------------

    def lookup(self, request: Request) -> list[int]:
        """The cached blocks of a waiting request's longest prefix, at most ``(num_tokens - 1) // block_size``.

        The last token is never taken from the cache: something must be computed to sample from. The list belongs
        to the core. What did not change since the last look-up is not looked up again.
        """
        if not self._enabled:
            return []
        now = self._log_start + len(self._log)
        hits = request._hits
        known: set[int] | None = None
        if request._hit_key is not None:
            position, added, known = request._hit_key
            stale = False
            if hits and position != now:
                if known is None:
                    known = set(request._hashes[: len(hits)])
                since = position - self._log_start
                stale = since < 0 or not known.isdisjoint(self._log[since:])
            if stale:
                hits = request._hits = []
                known = None
            elif added == self._num_added:
                request._hit_key = (now, added, known)
                return hits
        self._extend(request, hits, known)
        request._hit_key = (now, self._num_added, known)
        return hits

    def _extend(self, request: Request, hits: list[int], known: set[int] | None) -> None:
        """Look up the blocks behind the hits known so far, up to the first miss."""
        size, hashes = self.block_size, request._hashes
        last = (request.num_tokens - 1) // size
        width = 1
        while (first := len(hits)) < last:
            end = min(first + width, last)
            tokens = request._tokens[first * size : end * size].tobytes()
            self._hash(request, tokens, first)
            digests = hashes[first:end]
            try:
                blocks = list(map(self._answering.__getitem__, digests))
            except KeyError:
                known_digests = takewhile(self._answering.__contains__, digests)
                blocks = [self._answering[digest] for digest in known_digests]
            found = len(blocks)
            # Equal hashes may lie: the tokens, and the prefix before them, must be the same.
            prefixes = [hashes[first - 1] if first else 0, *digests[: found - 1]]
            same = b"".join(map(self._tokens_of.__getitem__, blocks)) == tokens[: found * size * _TOKEN_BYTES]
            if found and not (same and list(map(self._prefix_of.__getitem__, blocks)) == prefixes):
                found = self._num_true(blocks, prefixes, tokens)
                del blocks[found:]
            hits.extend(blocks)
            if known is not None:
                known.update(digests[:found])
            if found < end - first:
                return
            width = _STRIDE

    def _num_true(self, blocks: list[int], prefixes: list[int], tokens: bytes) -> int:
        """How many blocks, up to the first that does not, hold these tokens behind these prefixes."""
        step = self.block_size * _TOKEN_BYTES
        for index, (block, prefix) in enumerate(zip(blocks, prefixes, strict=True)):
            mine = tokens[index * step : (index + 1) * step]
            if self._prefix_of[block] != prefix or self._tokens_of[block] != mine:
                return index
        return len(blocks)

    def _hash(self, request: Request, tokens: bytes, first: int) -> None:
        """Hash what was not hashed yet of ``tokens``, which begins with block ``first``."""
        hashes = request._hashes
        skip = (len(hashes) - first) * self.block_size * _TOKEN_BYTES
        if skip < len(tokens):
            digest = hashes[-1] if hashes else 0
            blocks = self._split(tokens[skip:] if skip else tokens)
            hashes += [digest := xxh3_64_intdigest(block, digest) for (block,) in blocks]

    def register(self, request: Request, num_tokens: int) -> list[int]:
        """Make the full blocks among a resident's first ``num_tokens`` tokens answer look-ups; returns the new ones."""
        if not self._enabled:
            return []
        size, hashes = self.block_size, request._hashes
        first, last = request._num_registered, num_tokens // size
        if first >= last:
            return []
        request._num_registered = last
        tokens = request._tokens[first * size : last * size].tobytes()
        prefix = hashes[first - 1] if first else 0
        if last - first == 1:  # a decode that filled its block: the one case that runs in every step
            if len(hashes) == first:
                hashes.append(xxh3_64_intdigest(tokens, prefix))
            block = request.block_table[first]
            if self._enter(block, hashes[first], prefix, tokens):
                return [block]
            request._num_registered = UNSHARED
            return []
        self._hash(request, tokens, first)
        new = []
        for index, (mine,) in zip(range(first, last), self._split(tokens), strict=True):
            digest, block = hashes[index], request.block_table[index]
            if not self._enter(block, digest, prefix, mine):
                request._num_registered = UNSHARED
                break
            new.append(block)
            prefix = digest
        return new

    def _enter(self, block: int, digest: int, prefix: int, tokens: bytes) -> bool:
        """Make a block answer look-ups, or stand behind the one that does."""
        answering = self._answering.setdefault(digest, block)
        if answering == block:
            self._num_added += 1
        elif self._tokens_of[answering] != tokens or self._prefix_of[answering] != prefix:
            return False  # another prefix has this hash and keeps it: neither this block nor what follows is shared
        elif self._newest:
            self._others.setdefault(digest, {})[answering] = None
            self._answering[digest] = block
            self._changed(digest)
        else:
            self._others.setdefault(digest, {})[block] = None
        self._hash_of[block] = digest
        self._prefix_of[block] = prefix
        self._tokens_of[block] = tokens
        return True

    def unregister(self, block: int) -> None:
        """Forget the cached content of a block; another block with that content answers from now on."""
        digest = self._hash_of[block]
        if digest is None:
            return
        self._hash_of[block] = self._prefix_of[block] = None
        others = self._others.get(digest)
        if self._answering[digest] != block:
            assert others is not None
            del others[block]
        else:
            if others:
                heir = next(reversed(others)) if self._newest else next(iter(others))
                del others[heir]
                self._answering[digest] = heir
            else:
                del self._answering[digest]
            self._changed(digest)
        if others is not None and not others:
            del self._others[digest]

    def _changed(self, digest: int) -> None:
        log = self._log
        log.append(digest)
        if len(log) > _LOG_LIMIT:
            del log[: _LOG_LIMIT // 2]
            self._log_start += _LOG_LIMIT // 2
