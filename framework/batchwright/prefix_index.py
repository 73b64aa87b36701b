"""Which KV blocks hold which content: the index behind the prefix cache.

A full block is identified by the hash of its tokens chained with the hash of the block before it, so equal hashes mean
equal prefixes; a hit is confirmed on the tokens themselves. Each full block of a request is hashed once at most, and
the hash kept with the request, through preemptions too.

A look-up seldom hashes at all. Each block remembers the run of blocks of the request that registered it, so a prompt
that was seen before is found by its first block; the others of the run are confirmed together, on tokens and chained
hashes. Only the first block, and those where prompts part, are hashed and looked for.
"""

from __future__ import annotations

import struct
from array import array

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request

_LOG_LIMIT = 8192
BEHIND, ANSWERS = 1, 2
_NO_BLOCKS = array("i")
_HASH = struct.Struct("=Q")
_TOKEN_BYTES = array("i").itemsize
_MANY = 8
"""Blocks from which on they are registered together: fewer cost less one by one."""
_STRIDE = 256
"""Blocks of a run that are confirmed together, at first: few enough to part early, many enough to be fast."""
UNSHARED = 2**62
"""Number of registered blocks of a request whose hash collided: more than it can have, so it registers no more."""


class Run:
    """Blocks that one request registered, in order; the first of them holds its block number ``start``.

    While the request holds them, they are a part of its block table, which grows with it.
    """

    __slots__ = ("_blocks", "_offset", "start")

    def __init__(self, table: list[int], start: int) -> None:
        self._blocks: list[int] | array[int] = table
        self._offset = 0
        self.start = start

    def between(self, first: int, last: int) -> array[int]:
        """Its blocks from number ``first`` up to ``last``, as far as there are any."""
        return array("i", self._blocks[first - self._offset : last - self._offset])

    def end(self, num_registered: int) -> None:
        """The request lets go of its blocks."""
        self._blocks = array("i", self._blocks[self.start : num_registered])
        self._offset = self.start


class PrefixIndex:
    """Content of the blocks of a pool, and the look-up of prefixes in it.

    Attributes:
        registered: per block, whether its content is known and can be shared; ``ANSWERS`` where this block, of those
            with equal content, is the one that is shared.
    """

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache) -> None:
        self._size = block_size
        self._newest = cache.duplicates == "newest"
        width = block_size * _TOKEN_BYTES
        self._split = struct.Struct(f"{width}s").iter_unpack
        self.registered = bytearray(num_blocks)
        self._all_registered: NDArray[np.uint8] = np.frombuffer(self.registered, dtype=np.uint8)  # the same memory
        # Per block its hash, the hash of what comes before it (0: nothing), and its tokens. Side by side, since they
        # are written together. Pages that were never touched take no memory.
        record = struct.Struct(f"=QQ{width}s")
        self._pack, self._unpack, self._width = record.pack_into, record.unpack_from, record.size
        self._records = np.zeros(num_blocks, dtype=[("hash", "u8"), ("prefix", "u8"), ("tokens", "i4", block_size)])
        self._bytes = self._records.view(np.uint8).data
        self._run_of: list[Run] = [Run([], 0)] * num_blocks  # hints; what they say is confirmed where it is used
        self._answering: dict[int, int] = {}  # hash -> the block that answers look-ups
        self._others: dict[int, dict[int, None]] = {}  # hash -> further blocks with that content, oldest first
        # What changed since a look-up: hashes added (a count), and hashes whose answering block went or changed
        # (a log; position 0 of the list is number _log_start). A waiting request looks at the changes, not again at
        # its whole prompt.
        self._num_added = 0
        self._log: list[int] = []
        self._log_start = 0

    def lookup(self, request: Request) -> array[int]:
        """The cached blocks of a waiting request's longest prefix, at most ``(num_tokens - 1) // block_size``.

        The last token is never taken from the cache: something must be computed to sample from. The array belongs
        to the core. What did not change since the last look-up is not looked up again.
        """
        now = self._log_start + len(self._log)
        hits = request._hits
        known: set[int] | None = None
        if request._hit_key is not None:
            position, added, known = request._hit_key
            if position == now and added == self._num_added:
                return hits
            stale = False
            if hits and position != now:
                if known is None:
                    known = set(request._hashes[: len(hits)])
                since = position - self._log_start
                stale = since < 0 or not known.isdisjoint(self._log[since:])
            if stale:
                hits = request._hits = array("i")
                known = None
            elif added == self._num_added:
                request._hit_key = (now, added, known)
                return hits
        self._extend(request, hits)
        if known is not None:
            known.update(request._hashes[: len(hits)])
        request._hit_key = (now, self._num_added, known)
        return hits

    def _extend(self, request: Request, hits: array[int]) -> None:
        """Look up the blocks behind the hits known so far, up to the first miss."""
        last = (request.num_tokens - 1) // self._size
        width = _STRIDE
        missed = len(request._hashes) > len(hits)  # this block was looked for before: one probe tells if it came
        while len(hits) < last:
            if hits and not missed:
                upto = min(len(hits) + width, last)
                hits += self._follow(request, hits, upto)
                width *= 4
                if len(hits) == upto:
                    continue
            block = self._find(request, len(hits))
            if block is None:
                return
            hits.append(block)
            missed = False

    def _follow(self, request: Request, hits: array[int], upto: int) -> array[int]:
        """Blocks behind the last hit, to be ``upto`` blocks in all at most, as far as its run goes and is true."""
        first, size = len(hits), self._size
        run = self._run_of[hits[-1]]
        if first <= run.start:
            return _NO_BLOCKS
        chain = run.between(first, upto)
        n = len(chain)
        if not n:
            return chain
        records = self._records.take(np.frombuffer(chain, dtype=np.int32))
        answers = self._all_registered.take(np.frombuffer(chain, dtype=np.int32)) == ANSWERS
        tokens = request._tokens[first * size : (first + n) * size].tobytes()
        hashes = records["hash"]
        prefixes = np.empty_like(hashes)
        prefixes[0], prefixes[1:] = request._hashes[first - 1], hashes[:-1]
        if (
            records["tokens"].tobytes() != tokens
            or records["prefix"].tobytes() != prefixes.tobytes()
            or not answers.all()
        ):
            true = (records["tokens"] == np.frombuffer(tokens, dtype=np.int32).reshape(n, size)).all(axis=1)
            true &= (records["prefix"] == prefixes) & answers
            n = int(true.argmin())
        missing = first + n - len(request._hashes)
        if missing > 0:
            request._hashes += hashes[n - missing : n].tolist()
        return chain[:n]

    def _find(self, request: Request, index: int) -> int | None:
        """The block that answers for a request's block of that index; the ones before it are hits."""
        size, hashes = self._size, request._hashes
        tokens = request._tokens[index * size : (index + 1) * size].tobytes()
        prefix = hashes[index - 1] if index else 0
        if len(hashes) == index:
            hashes.append(xxh3_64_intdigest(tokens, prefix))
        block = self._answering.get(hashes[index])
        # Equal hashes may lie: the tokens, and the prefix before them, must be the same.
        return block if block is not None and self._holds(block, tokens, prefix) else None

    def _holds(self, block: int, tokens: bytes, prefix: int) -> bool:
        return self._unpack(self._bytes, block * self._width)[1:] == (prefix, tokens)

    def register(self, request: Request, num_tokens: int) -> list[int]:
        """Make the full blocks among a resident's first ``num_tokens`` tokens answer look-ups; returns the new ones."""
        size, new = self._size, []
        first, last = request._num_registered, num_tokens // size
        if first < last:
            tokens = request._tokens[first * size : last * size].tobytes()
            if last - first >= _MANY and self._register_all(request, first, last, tokens):
                return request.block_table[first:last]
            for (part,) in self._split(tokens):
                registered = self.register_next(request, part)
                if not registered:
                    break
                new += registered
        return new

    def _register_all(self, request: Request, first: int, last: int, tokens: bytes) -> bool:
        """``register`` blocks of which none is known yet; False, and nothing done, where one is."""
        hashes, blocks = request._hashes, request.block_table[first:last]
        parts = list(self._split(tokens))
        digest = hashes[-1] if hashes else 0
        hashes += [digest := xxh3_64_intdigest(part, digest) for (part,) in parts[len(hashes) - first :]]
        mine = hashes[first:last]
        if not self._answering.keys().isdisjoint(mine):
            return False
        before = len(self._answering)
        self._answering.update(zip(mine, blocks, strict=True))
        if len(self._answering) - before < last - first:  # two of them have one hash
            for digest in set(mine):
                del self._answering[digest]
            return False
        self._num_added += last - first
        run = request._run
        if run is None:
            run = request._run = Run(request.block_table, first)
        prefix = hashes[first - 1] if first else 0
        registered, run_of, pack, memory, width = self.registered, self._run_of, self._pack, self._bytes, self._width
        for block, digest, (part,) in zip(blocks, mine, parts, strict=True):
            registered[block] = ANSWERS
            run_of[block] = run
            pack(memory, block * width, digest, prefix, part)
            prefix = digest
        request._num_registered = last
        return True

    def register_next(self, request: Request, tokens: bytes) -> list[int]:
        """``register`` the next block of a resident; it is full, and these are its tokens."""
        hashes, place = request._hashes, request._num_registered
        block = request.block_table[place]
        prefix = hashes[place - 1] if place else 0
        if len(hashes) == place:
            digest = xxh3_64_intdigest(tokens, prefix)
            hashes.append(digest)
        else:
            digest = hashes[place]
        answering = self._answering.setdefault(digest, block)
        if answering == block:
            self._num_added += 1
            self.registered[block] = ANSWERS
        elif not self._holds(answering, tokens, prefix):
            # Another prefix has this hash and keeps it: neither this block nor what follows is shared.
            request._num_registered = UNSHARED
            return []
        elif self._newest:
            self._others.setdefault(digest, {})[answering] = None
            self._answer(digest, answering, block)
        else:
            self._others.setdefault(digest, {})[block] = None
            self.registered[block] = BEHIND
        request._num_registered = place + 1
        self._pack(self._bytes, block * self._width, digest, prefix, tokens)
        run = request._run
        if run is None:
            run = request._run = Run(request.block_table, place)
        self._run_of[block] = run
        return [block]

    def next_hash(self, request: Request, tokens: bytes) -> int:
        """Hash that ``register_next`` would give."""
        hashes, place = request._hashes, request._num_registered
        if len(hashes) == place:
            hashes.append(xxh3_64_intdigest(tokens, hashes[place - 1] if place else 0))
        return hashes[place]

    def last_hash(self, request: Request) -> int:
        """Hash of the last block that a request registered; 0: of none."""
        num = request._num_registered
        return request._hashes[num - 1] if 0 < num < UNSHARED else 0

    def unregister(self, block: int) -> None:
        """Forget the cached content of a block; another block with that content answers from now on."""
        was = self.registered[block]
        if not was:
            return
        digest = self.hash_of(block)
        others = self._others.get(digest)
        if was == BEHIND:
            assert others is not None
            del others[block]
        elif others:
            heir = next(reversed(others)) if self._newest else next(iter(others))
            del others[heir]
            self._answer(digest, block, heir)
        else:
            del self._answering[digest]
            self._changed(digest)
        self.registered[block] = 0
        if others is not None and not others:
            del self._others[digest]

    def hash_of(self, block: int) -> int:
        """Hash of a registered block."""
        digest: int = _HASH.unpack_from(self._bytes, block * self._width)[0]
        return digest

    def _answer(self, digest: int, old: int, new: int) -> None:
        """Another block answers for this content from now on."""
        self.registered[old] = BEHIND
        self.registered[new] = ANSWERS
        self._answering[digest] = new
        self._changed(digest)

    def _changed(self, digest: int) -> None:
        log = self._log
        log.append(digest)
        if len(log) > _LOG_LIMIT:
            del log[: _LOG_LIMIT // 2]
            self._log_start += _LOG_LIMIT // 2
