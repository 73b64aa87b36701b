"""A scheduler on a stage: stepped by hand, and traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from batchwright.hookspecs import hookimpl
from batchwright.limits import Limits
from batchwright.policy import Policy
from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright.trace import TracedStep, Tracer

Step = Any


class Plain(Policy):
    """Decodes, cut prompts, then waiting ones up to the first that does not fit; the core does the rest."""

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield step.running
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                return


class Stage:
    """A scheduler, stepped and traced."""

    def __init__(
        self,
        policy: Any = None,
        *,
        num_blocks: int = 20,
        plugins: Sequence[Any] = (),
        prefix_cache: PrefixCache | None = None,
        **limits: Any,
    ) -> None:
        self.scheduler = Scheduler(
            policy or Plain(),
            num_blocks=num_blocks,
            block_size=4,
            limits=Limits(**{"max_num_seqs": 4, "max_num_batched_tokens": 16, **limits}),
            prefix_cache=prefix_cache,
            plugins=plugins,
        )
        self.tracer = Tracer(self.scheduler)

    def add(self, name: str, num_prompt: int, max_tokens: int = 8, **fields: Any) -> Request:
        tokens = [sum(name.encode()) % 89 + i for i in range(num_prompt)]
        request = Request(name, tokens, SamplingParams(max_tokens=max_tokens), **fields)
        self.scheduler.add(request)
        return request

    def step(self, *, fail: bool | None = None) -> TracedStep:
        batch = self.scheduler.schedule(0)
        if fail is None:
            self.scheduler.update(batch, [7] * int(batch.samples.sum()), 1)
        else:
            self.scheduler.fail(batch, "it broke", retry=fail, now=1)
        (traced,) = self.tracer.take()
        return traced


class Quota:
    """Lets one request of a client in; a wrapper of admission."""

    name = "quota"

    @hookimpl(wrapper=True)
    def admission(self, step: Step) -> Any:
        offers = yield

        def some() -> Iterator[Any]:
            for offer in offers:
                if isinstance(offer, Request) and offer.client_id == "greedy":
                    continue
                yield offer

        return some()


class Halver:
    """Halves every chunk; a wrapper of chunking."""

    name = "halver"

    @hookimpl(wrapper=True)
    def chunking(self, step: Step, request: Request) -> Any:
        answer = yield
        return answer // 2 if answer > 8 else answer
