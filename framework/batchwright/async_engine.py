"""The engine for many callers at once, on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from batchwright.engine import Engine
from batchwright.errors import BatchwrightError
from batchwright.llm import as_request
from batchwright.outputs import RequestOutput
from batchwright.prompts import Prompt
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams


class AsyncEngine:
    """Streams requests through one :class:`Engine`.

    Steps run in a thread of their own, so that the event loop stays free; requests come and go between two steps. A
    caller that stops listening (breaks out of ``generate``, or is cancelled) has its request aborted and its blocks
    freed.

        async with AsyncEngine(engine) as serving:
            async for output in serving.generate("Hello", SamplingParams(max_tokens=8)):
                print(output.new_text, end="")
    """

    def __init__(self, engine: Engine) -> None:
        """Takes an engine that nobody else steps."""
        self.engine = engine
        self._queues: dict[str, asyncio.Queue[RequestOutput | BaseException]] = {}
        self._work: list[tuple[Callable[[], Any], asyncio.Future[Any] | None]] = []
        self._failed: BaseException | None = None
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batchwright-engine")
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        engine.on_abort = self._put
        self._ids = count()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def generate(
        self,
        prompt: Prompt | Request,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **fields: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Run one request; yields its output after each of its tokens, the last with ``finished``.

        Args:
            prompt: text, token ids, a mapping as for :meth:`LLM.generate <batchwright.LLM.generate>` (with
                ``messages``, a conversation), or a whole request.
            sampling_params: the defaults without it.
            request_id: made up without it.
            fields: further fields of :class:`Request`, such as ``priority`` or ``client_id``.

        Raises:
            RequestError: the request was not taken.
            BatchwrightError: the engine failed or was closed.
        """
        if isinstance(prompt, Request):
            request, text = prompt, None
        else:
            request, text = as_request(
                self.engine, request_id or f"async-{next(self._ids)}", prompt, sampling_params, **fields
            )
        queue: asyncio.Queue[RequestOutput | BaseException] = asyncio.Queue()

        added = finished = False

        def add() -> None:
            nonlocal added
            if request.arrival_index < 0:  # a new one: of one that runs already nothing is touched
                request.arrival_ns = self.engine.clock.now_ns()
            self.engine.add_request(request, prompt=text)
            self._queues[request.request_id] = queue
            added = True

        try:
            await self._between_steps(add)
            while not finished:
                output = await queue.get()
                if isinstance(output, BaseException):
                    finished = True
                    raise output
                finished = output.finished
                yield output
        finally:
            # The id may be somebody else's by now: it is free again as soon as a request has finished.
            if self._queues.get(request.request_id) is queue:
                del self._queues[request.request_id]
            if added and not finished:  # the caller went away
                self._work.append((lambda: self._abort(request), None))
                self._wake.set()

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with finish reason ``abort``.

        Raises:
            UnknownRequestError: no such request is waiting or running.
        """
        await self._between_steps(lambda: self.engine.abort(request_id))

    async def run(self, function: Callable[[Engine], Any]) -> Any:
        """Call ``function(engine)`` between two steps, to read state or to swap the policy."""
        return await self._between_steps(lambda: function(self.engine))

    async def close(self) -> None:
        """End all requests and the engine. Streams still open get an error."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._task is not None:
            await self._task
        self._fail(BatchwrightError("the engine was closed"))
        self.engine.on_abort = None  # those who waited were told
        await asyncio.get_running_loop().run_in_executor(self._thread, self.engine.close)
        self._thread.shutdown()

    def _stopped(self) -> BatchwrightError:
        return BatchwrightError(f"the engine stopped: {self._failed}")

    def _abort(self, request: Request) -> None:
        if self.engine.scheduler.get(request.request_id) is request:  # else it finished in the meantime
            self.engine.abort(request.request_id)

    async def _between_steps(self, function: Callable[[], Any]) -> Any:
        if self._closed or self._failed is not None:
            raise BatchwrightError("the engine is closed") if self._closed else self._stopped()
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._loop())
        future: asyncio.Future[Any] = loop.create_future()
        self._work.append((function, future))
        self._wake.set()
        return await future

    async def _loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._do_work()
            if self._closed:
                return
            if not self.engine.has_unfinished():
                self._wake.clear()
                if not self._work:
                    await self._wake.wait()
                continue
            try:
                outputs = await loop.run_in_executor(self._thread, self.engine.step)
            except Exception as error:  # a PolicyError, say: everybody who waits is told, and nothing runs any more
                self._failed = error
                self._fail(error)
                return
            for output in outputs:
                self._put(output)

    def _put(self, output: RequestOutput) -> None:
        queue = self._queues.get(output.request_id)
        if queue is not None:
            queue.put_nowait(output)

    def _do_work(self) -> None:
        work, self._work = self._work, []
        for function, future in work:
            if future is None:
                function()
            elif not future.cancelled():  # nobody waits for it any more
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)

    def _fail(self, error: BaseException) -> None:
        for queue in self._queues.values():
            queue.put_nowait(error)
        self._queues.clear()
        work, self._work = self._work, []
        for _, future in work:
            if future is not None and not future.cancelled():
                future.set_exception(error)
