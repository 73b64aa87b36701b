"""Traffic on disk: what each request was like and what became of it, and every step; never text, nor token ids.

The scheduler's thread puts down a few numbers; another one hashes, compresses and writes.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from hashlib import blake2b
from itertools import chain
from typing import Any

from batchwright.errors import ConfigError
from batchwright.lab.readers.recording import RecordedRequest
from batchwright.lab.records import RequestRecord
from batchwright.request import Request
from batchwright_backends.vllm.ledger import Entry, Ledger, Numbers
from batchwright_backends.vllm.parts import Parts, RecordSettings, block_hashes, salt

logger = logging.getLogger("vllm.batchwright")

_EVERY_S = 1.0
_STEPS_OF_A_LINE = 1024
_MOST_WAITING = 100_000
"""Requests that may wait to be written, and steps; where the disk is slower, further ones are dropped and counted."""
_MOST_TOKENS = 20_000_000
"""Tokens of prompts that may wait to be written: each is an object of Python's."""
_PATIENCE_S = 10.0
"""How long a server that shuts down waits for its disk."""

Said = Callable[[Any], "Request | None"]


class Recording(Ledger):
    """Writes what happens in one scheduler to a folder.

    A disk that is full, or any other fault, ends the recording with an error in the log, and the scheduler goes on.

    Args:
        settings: where to, and how.
        about: what the head of each part says of the scheduler.
        num_blocks: KV blocks that requests may have.
        block_size: tokens of a KV block, for which prompts are hashed.
        said: what policies are told of a request of vLLM's; None: nothing.

    Raises:
        ConfigError: the folder cannot be written to.
    """

    forgives = True

    def __init__(
        self, settings: RecordSettings, about: Mapping[str, Any], num_blocks: int, block_size: int, said: Said
    ) -> None:
        super().__init__(time.perf_counter_ns(), num_blocks)
        self._block_size = block_size
        self._said = said
        self._key = salt()
        self._num_requests = self._num_dropped = self._num_steps_dropped = self._num_unfit = 0
        self._tokens_in = self._tokens_out = 0  # each is counted in one thread only
        self._steps: deque[Numbers] = deque()
        self._waiting: deque[tuple[Entry, Request | None]] = deque()
        self._told = Counter[str]()
        self._asked: dict[str, Request | None] = {}
        head = {"run": secrets.token_hex(4), "start_unix_ns": time.time_ns(), "prefix_block_size": block_size, **about}
        try:
            self._parts = Parts(settings, head)
        except OSError as error:
            raise ConfigError(
                f"record: cannot write to {settings.dir}: {error.strerror or error}; name a folder that vLLM's process "
                "may write to, or leave record out"
            ) from None
        self._done = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._write_on, daemon=True, name="batchwright-record")
        self._thread.start()
        atexit.register(self.finish)
        logger.info("traffic is recorded in %s", self._parts.path)

    # In the scheduler's thread ----------------------------------------------------------------------------------

    def begin(self, request: Any, now_ns: int) -> RequestRecord:
        """See :class:`Ledger`."""
        return RequestRecord.begin(
            request.request_id, now_ns - self.start_ns, request.num_prompt_tokens, priority=request.priority
        )

    def arrived(self, request: Any) -> None:
        """See :class:`Ledger`."""
        if request.request_id in self.entries:
            self._asked[request.request_id] = self._said(request)

    def not_taken(self, request: Any) -> None:
        """See :class:`Ledger`."""
        super().not_taken(request)
        self._asked.pop(request.request_id, None)

    def ended(self, entry: Entry) -> None:
        """See :class:`Ledger`."""
        said = self._asked.pop(entry.name, None)
        num = entry.record.num_prompt_tokens
        if len(self._waiting) >= _MOST_WAITING or self._tokens_in - self._tokens_out + num > _MOST_TOKENS:
            self._num_dropped += 1
        else:
            self._tokens_in += num
            self._waiting.append((entry, said))

    def step(self, numbers: Numbers, fingerprint: int) -> None:
        """See :class:`Ledger`."""
        if len(self._steps) < _MOST_WAITING:
            self._steps.append(numbers)
        else:
            self._num_steps_dropped += 1

    def failed(self, error: Exception) -> None:
        """See :class:`Ledger`."""
        logger.error("the recording of traffic has ended, and vLLM goes on without it: %r", error, exc_info=error)

    def finish(self) -> None:
        """Write all that is left, who has not ended too, and close the files."""
        if self._done.is_set():
            return
        self._done.set()
        self._thread.join(_PATIENCE_S)
        atexit.unregister(self.finish)
        if self._thread.is_alive():
            self.is_closed = True
            logger.error("the disk of %s does not answer: the last of the traffic is not recorded", self._parts.path)
            return
        if not self.is_closed:
            self.settle()
            for entry in list(self.entries.values()):
                entry.record.num_output_tokens = len(entry.record.token_times_ns)
                self.ended(entry)
            self.is_closed = True
            self._write()
        try:
            self._parts.close()
        except OSError as error:
            logger.error("the last of the traffic is not recorded: %s cannot be closed: %s", self._parts.path, error)

    # In the other thread ----------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while not self._done.wait(_EVERY_S) and not self.is_closed:
            self._write()

    def _write(self) -> None:
        try:
            with self._writing:
                while self._waiting:
                    self._write_request(*self._waiting.popleft())
                while self._steps:
                    some = [self._steps.popleft() for _ in range(min(len(self._steps), _STEPS_OF_A_LINE))]
                    self._parts.write({"steps": list(chain.from_iterable(some))})
                self._write_lost()
                self._parts.flush()
        except Exception as error:
            self.is_closed = True
            self._waiting.clear()
            self._steps.clear()
            self.failed(error)

    def _write_request(self, entry: Entry, said: Request | None) -> None:
        self._tokens_out += entry.record.num_prompt_tokens
        try:
            line = self._line(entry, said)
        except Exception:  # what is wrong with one request is not the others' affair
            if not self._num_unfit:
                logger.exception("request %r, and others like it, are left out of the recording", entry.name)
            self._num_unfit += 1
        else:
            self._parts.write({"request": line})

    def _write_lost(self) -> None:
        lost = Counter(dropped=self._num_dropped, unfit=self._num_unfit, steps_dropped=self._num_steps_dropped)
        for what, num in (lost - self._told).items():
            self._parts.write({what: num})
        self._told = lost

    def _line(self, entry: Entry, said: Request | None) -> dict[str, Any]:
        theirs = entry.request
        self._num_requests += 1
        params = theirs.sampling_params
        return RecordedRequest.of(
            entry.record,
            said,
            number=self._num_requests,
            max_tokens=params.max_tokens if params is not None else None,
            prefix_ids=block_hashes(theirs.prompt_token_ids or (), self._block_size, self._key),
            name_of=self._name,
        ).to_json()

    def _name(self, name: str | None) -> str | None:
        """In the place of a name that serves to tell who belongs together only."""
        return None if name is None else blake2b(name.encode(), digest_size=8, key=self._key).hexdigest()
