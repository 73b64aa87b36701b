"""Traffic on disk: what each request was like and what became of it, and every step; never text, nor token ids.

The scheduler's thread puts down a few numbers; another one hashes, compresses and writes.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from hashlib import blake2b
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
"""Requests that may wait to be written; where the disk is slower than that, further ones are dropped and counted."""

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
        self._num_requests = self._num_dropped = 0
        self._numbers: array[int] = array("q")
        self._waiting: deque[tuple[Entry, Request | None] | array[int]] = deque()
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
        if len(self._waiting) >= _MOST_WAITING:
            self._num_dropped += 1
        else:
            self._waiting.append((entry, said))

    def step(self, numbers: Numbers, fingerprint: int) -> None:
        """See :class:`Ledger`."""
        self._numbers.extend(numbers)
        if len(self._numbers) >= _STEPS_OF_A_LINE * len(numbers):
            self._hand_over_steps()

    def _hand_over_steps(self) -> None:
        numbers, self._numbers = self._numbers, array("q")
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(numbers)

    def failed(self, error: Exception) -> None:
        """See :class:`Ledger`."""
        logger.error("the recording of traffic has ended, and vLLM goes on without it: %r", error, exc_info=error)

    def finish(self) -> None:
        """Write all that is left, who has not ended too, and close the files."""
        if self._done.is_set():
            return
        self._done.set()
        self._thread.join()
        atexit.unregister(self.finish)
        if self._numbers:
            self._hand_over_steps()
        for entry in list(self.entries.values()):
            entry.record.num_output_tokens = len(entry.record.token_times_ns)
            self.ended(entry)
        self.is_closed = True
        self._write()
        self._parts.close()

    # In the other thread ----------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while not self._done.wait(_EVERY_S) and not self.is_closed:
            self._write()

    def _write(self) -> None:
        try:
            with self._writing:
                while self._waiting:
                    one = self._waiting.popleft()
                    if isinstance(one, array):
                        self._parts.write({"steps": one.tolist()})
                    else:
                        self._parts.write({"request": self._line(*one)})
                if self._num_dropped:
                    dropped, self._num_dropped = self._num_dropped, 0
                    self._parts.write({"dropped": dropped})
                self._parts.flush()
        except Exception as error:
            self.is_closed = True
            self._waiting.clear()
            self.failed(error)

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
