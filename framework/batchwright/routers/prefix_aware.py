"""The replica that would have the prompt computed first, by what its cache holds and what waits there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.params import Params
from batchwright.router import Router

if TYPE_CHECKING:
    from batchwright.fleet.view import FleetView
    from batchwright.request import Request


class PrefixAwareParams(Params):
    """Parameters of :class:`PrefixAware`."""

    load_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=1.0,
        description="What a token that is pending on a replica counts beside a token of the prompt that its cache "
        "lacks. 0: the cache alone decides, however long the queue behind it.",
    )
    cache_threshold: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.3,
        description="A cached prefix counts only if it is more than this share of the prompt. 0: every one does, and "
        "while load is light newcomers gather where a few first tokens of theirs are cached. 1: none does.",
    )


class PrefixAware(Router):
    """The replica that would have the prompt computed first: the least pending there, and of the prompt, after hits.

    Source: Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025, algorithm 1 (KVCache-centric
    scheduling): of all instances the one with the least estimated TTFT, which is the time to work off its queue plus
    the time to compute what its cache lacks of the prompt. Both are counted in tokens here. Of equals the one with the
    fewest outstanding requests, then the one that got none for longest.

    A prefix that all requests begin with would draw all of them to the replica that had it first. So a cached prefix
    counts only above a share of the prompt, as in SGLang's router (sgl-project/sglang, commit 026f853,
    ``sgl-router/src/policies/cache_aware.rs``, ``cache_threshold``); below it the request is a newcomer, and goes where
    least is pending.

    Requests of one conversation stay together while that pays, and leave a replica whose queue is longer than what its
    cache saves. The replicas' own caches are asked, as they are when the request arrives. A request costs O(replicas x
    blocks of the prompt) at most: each cache is asked up to its first miss.
    """

    Params: ClassVar[type[Params]] = PrefixAwareParams
    params: PrefixAwareParams
    card: ClassVar[Card] = Card(
        source="Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025, algorithm 1; its threshold "
        "from sgl-project/sglang, commit 026f853, sgl-router/src/policies/cache_aware.rs",
        rules={
            "for each instance, estimate the time of its queue and of the prompt less its cached prefix": "_cost",
            "choose the instance with the least estimated TTFT": "routing",
            "SGLang: a match of no more than cache_threshold of the prompt is none": "_cost",
        },
        deviations=(
            "times are counted in tokens: pending ones for the queue, a decode as one",
            "no KV blocks are moved between replicas (kvcache_balancing_threshold), and nobody is rejected for an SLO",
            "a replica computes prompts and decodes; there they are instances of two kinds",
            "load_weight is an addition; 1 is the source's sum, and cache_threshold 0 its rule",
            "SGLang sends who matches nothing to the worker whose tree is smallest, and all to the shortest queue "
            "while loads are out of balance (balance_abs_threshold, balance_rel_threshold); here the sum weighs both",
        ),
        evidence={
            "property tested": "takes the replica with the longest cached prefix where nothing waits, and another "
            "where more waits than the cache saves; newcomers that share a short prefix are spread",
            "from the paper only": "its order of preference: no decisions of the source were recorded",
        },
    )

    def __init__(self, params: PrefixAwareParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._last: dict[int, int] = {}  # replica to the number of the last request that it got
        self._num_routed = 0

    @hookimpl
    def routing(self, fleet: FleetView, request: Request) -> int:
        """The least estimated work in front of its first token."""
        place = min(range(len(fleet)), key=lambda i: self._cost(fleet, i, request))
        self._num_routed += 1
        self._last[place] = self._num_routed
        return place

    def _cost(self, fleet: FleetView, place: int, request: Request) -> tuple[float, int, int]:
        replica = fleet[place]
        hits = replica.num_cached(request)
        if hits <= self.params.cache_threshold * request.num_prompt_tokens:
            hits = 0
        work = self.params.load_weight * replica.outstanding_tokens + request.num_prompt_tokens - hits
        return work, replica.num_requests, self._last.get(place, 0)
