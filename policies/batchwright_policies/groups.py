"""Waiting requests by group: of a client, of a program."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from batchwright.lazy_heap import LazyHeap
from batchwright.request import Request

Group = TypeVar("Group", bound=Hashable)


Client = str | None


def client_of(request: Request) -> Client:
    """Whom a request belongs to; those without a client_id are one client."""
    return request.client_id


def _arrival(request: Request) -> int:
    return request.arrival_index


class Groups(Generic[Group]):
    """Waiting requests: the group of the lowest rank first, within a group by arrival.

    A change, and each request that one looks at, costs O(log n). What is kept of a group goes with its last request.

    Args:
        group_of: the group of a request; always the same.
        rank: a group's rank, given its oldest request; with the same one it may only rise. Equal ranks go by the
            arrival of those requests.
    """

    def __init__(self, group_of: Callable[[Request], Group], rank: Callable[[Group, Request], Any]) -> None:
        self._group_of = group_of
        self._rank = rank
        self._members: dict[Group, LazyHeap[Request]] = {}
        self._order: LazyHeap[Group] = LazyHeap(self._place)
        self._num_requests = 0

    def __len__(self) -> int:
        return self._num_requests

    def __contains__(self, group: Group) -> bool:
        return group in self._members

    def push(self, request: Request) -> None:
        """It waits from now on."""
        group = self._group_of(request)
        members = self._members.get(group)
        if members is None:
            members = self._members[group] = LazyHeap(_arrival)
        self._num_requests += request not in members
        members.push(request)
        if members.first() is request:
            self._order.push(group)

    def discard(self, request: Request) -> None:
        """It waits no longer, if it did."""
        group = self._group_of(request)
        members = self._members.get(group)
        if members is not None and request in members:
            members.discard(request)
            self._num_requests -= 1
            if members:
                self._order.push(group)  # another request is its oldest now
            else:
                del self._members[group]
                self._order.discard(group)

    def fill(self, requests: Iterable[Request]) -> None:
        """These wait and no others: O(n)."""
        found: dict[Group, list[Request]] = {}
        for request in requests:
            found.setdefault(self._group_of(request), []).append(request)
        self._members = {group: LazyHeap(_arrival) for group in found}
        for group, members in found.items():
            self._members[group].fill(members)
        self._order.fill(found)
        self._num_requests = sum(map(len, found.values()))

    def first_group(self) -> Group | None:
        """The group of the lowest rank; None when nobody waits."""
        return self._order.first()

    def first(self) -> Request | None:
        """The oldest request of the group of the lowest rank."""
        group = self._order.first()
        return None if group is None else self._members[group].first()

    def rerank(self, group: Group) -> None:
        """Rank a group anew, if it waits: its rank fell."""
        if group in self._members:
            self._order.push(group)

    def oldest(self, most: int) -> list[Request]:
        """As many requests, in equal numbers from each group as far as it goes, from the lowest rank on."""
        share = max(1, most // max(1, len(self._members)))
        found: list[Request] = []
        for group in self._order.in_order():
            found += islice(self._members[group].in_order(), min(share, most - len(found)))
            if len(found) >= most:
                break
        return found

    def in_order(self) -> Iterator[Request]:
        """Requests, first to last, as far as one looks; a group is ranked anew after each request of it."""
        seen: set[Group] = set()  # a request that is evicted meanwhile may bring its group up again
        groups = (group for group in self._order.in_order() if group not in seen)
        nobody: Any = object()  # None is a group too
        group = next(groups, nobody)
        begun: list[tuple[Any, Request, Group, Iterator[Request]]] = []  # groups with more, by the next request's place
        while group is not nobody or begun:
            if group is not nobody and (not begun or self._place(group) < begun[0][0]):
                mine, requests = group, self._members[group].in_order()
                seen.add(mine)
                request, group = next(requests), next(groups, nobody)
            else:
                _, request, mine, requests = heapq.heappop(begun)
            yield request
            following = next(requests, None)
            if following is not None:
                place = (self._rank(mine, following), following.arrival_index)
                heapq.heappush(begun, (place, following, mine, requests))

    def _place(self, group: Group) -> tuple[Any, int]:
        first = self._members[group].first()
        assert first is not None  # a group goes with its last request
        return self._rank(group, first), first.arrival_index
