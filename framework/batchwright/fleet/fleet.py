"""Several replicas of an engine behind a router, in one virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from batchwright.backend import VirtualClock
from batchwright.engine import Engine
from batchwright.errors import ConfigError, InvalidRequestError, UnknownRequestError
from batchwright.fleet.replica import Refused, Replica
from batchwright.fleet.routing import Routing, routes
from batchwright.fleet.view import FleetView, ReplicaView
from batchwright.hookspecs import DECISIONS, OBSERVERS
from batchwright.plugin_checks import hook_methods
from batchwright.plugins import Plugins, load_plugins
from batchwright.resolve import resolve_router

if TYPE_CHECKING:
    from batchwright.backend import Backend
    from batchwright.config import EngineConfig
    from batchwright.outputs import RequestOutput
    from batchwright.policy import Policy
    from batchwright.request import Request
    from batchwright.router import Router

FINISH, ARRIVAL, BEGIN = range(3)
"""Kinds of events, in the order in which those of one moment happen."""


class Fleet:
    """Replicas of one engine, each with a policy, a KV pool and a prefix cache of its own, behind a router.

    Events happen in the order of virtual time. Of one moment ends of steps come first, then arrivals, then beginnings
    of steps; of equals the replica with the lower index. At an arrival a router sees what each replica has finished by
    then, and nothing of how the step ends that is under way. Call ``add_request`` when a request arrives and
    ``advance`` for each event before the next arrival; ``next_event`` says when the next event is.

    Attributes:
        config: as given.
        replicas: in order.
        router: its name, and the router.
        num_steps: steps begun so far, of all replicas.
        on_refused: told of requests that their replica does not take; without it ``advance`` raises such an error.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        backend: Callable[[], Backend] | None = None,
        policy: Callable[[], Policy] | None = None,
        router: Router | None = None,
        plugins: Sequence[object] = (),
        origins: Mapping[str, str] | None = None,
        installed: Plugins | None = None,
    ) -> None:
        """Makes router and replicas.

        Args:
            config: settings of every replica; ``replicas`` says how many there are, and ``router`` who routes.
            backend: makes the backend of a replica, in the place of ``config.backend``.
            policy: makes the policy of a replica, in the place of ``config.policy``.
            router: an object, in the place of ``config.router``.
            plugins: further objects with hookimpls. Their observers and wrappers run in every replica; a hook
                ``routing`` of theirs is asked before the router.
            origins: where the config's values come from.
            installed: plugins loaded already; else they are loaded here.

        Raises:
            ConfigError, PluginError, BackendError: something of it cannot be had; the message says what to do.
        """
        self.config = config
        self.plugins = installed if installed is not None else load_plugins(config.no_plugins)
        if backend is None:
            check_virtual(config, self.plugins)
        self.router: tuple[str, Router] = (
            (type(router).__name__, router) if router is not None else resolve_router(config.router, self.plugins)
        )
        listed = {name: self.plugins.active(name) for name in config.plugins}
        self._routing = Routing(
            *self.router,
            [plugin for plugin in (*listed.values(), *plugins) if routes(plugin)],
            on_policy_error=config.on_policy_error,
            strict=config.strict,
        )
        acting = [name for name, plugin in listed.items() if _acts(plugin)]
        one = config.model_copy(update={"replicas": 1, "router": None, "plugins": acting})
        self.replicas: list[Replica] = []
        try:
            for index in range(config.replicas):
                engine = Engine(
                    one,
                    backend=backend() if backend is not None else None,
                    policy=policy() if policy is not None else None,
                    plugins=[plugin for plugin in (self.router[1], *plugins) if _acts(plugin)],
                    origins=origins,
                    installed=self.plugins,
                )
                self.replicas.append(Replica(index, engine))
                self._check_last()
        except BaseException:
            self.close()
            raise
        self._now = max(replica.now_ns for replica in self.replicas)
        self._view = FleetView([ReplicaView(replica) for replica in self.replicas], random.Random(config.seed))
        self._events: list[tuple[int, int, int]] = []  # a heap of (time, kind, replica)
        self.num_steps = 0
        self.on_refused: Refused | None = None

    def _check_last(self) -> None:
        """Whether the newest replica has a virtual clock, and shares nothing with the others."""
        *others, engine = (replica.engine for replica in self.replicas)
        if not isinstance(engine.clock, VirtualClock):
            raise ConfigError(_no_virtual_time(self.config, engine.backend.name))
        policies = {id(part.policy) for part in engine.scheduler.policy.parts.values()}
        for what, is_shared in (
            ("backend", any(other.backend is engine.backend for other in others)),
            ("policy", any(id(p.policy) in policies for o in others for p in o.scheduler.policy.parts.values())),
        ):
            if is_shared:
                raise ConfigError(
                    f"two replicas share one {what} object, and each needs its own: give a function that makes a new "
                    "one each time it is called"
                )

    @property
    def now_ns(self) -> int:
        """The present: when the last event or arrival was, in nanoseconds of virtual time."""
        return self._now

    @property
    def events(self) -> list[dict[str, Any]]:
        """Faults of the router so far, with ``on_policy_error: fallback``."""
        return self._routing.events

    def describe(self) -> dict[str, Any]:
        """How many replicas, and the router with its parameters, as plain data."""
        name, router = self.router
        return {"replicas": len(self.replicas), "router": dict(router.describe(name))}

    def has_unfinished(self) -> bool:
        """Whether anybody waits or runs anywhere."""
        return any(replica.has_unfinished() for replica in self.replicas)

    def next_event(self) -> tuple[int, int] | None:
        """When something happens next, and what: ``FINISH`` or ``BEGIN``, of a step; None: nothing, before an arrival.

        An arrival comes before it where ``(arrival_ns, ARRIVAL)`` is less.
        """
        return self._events[0][:2] if self._events else None

    def add_request(self, request: Request, *, num_output_tokens: int | None = None) -> int:
        """Route a request that arrives; its replica takes it when its next step begins.

        Args:
            request: a new one. Where its ``arrival_ns`` is past, it arrives now.
            num_output_tokens: how long it really runs, where a trace is replayed: hidden from policies and routers.

        Returns:
            The index of its replica.

        Raises:
            InvalidRequestError: its id is in use.
            PolicyError: the router broke a rule, and the config says to raise; the fleet is whole and can go on.
        """
        if any(replica.holds(request.request_id) for replica in self.replicas):
            raise InvalidRequestError(f"request_id {request.request_id!r} is in use by an unfinished request")
        self._now = self._view._now = max(self._now, request.arrival_ns)
        place = self._routing.choose(self._view, request)
        replica = self.replicas[place]
        replica.route(request, num_output_tokens)
        if replica.is_idle:
            replica.is_idle = False
            heappush(self._events, (max(self._now, replica.now_ns), BEGIN, place))
        return place

    def abort(self, request_id: str) -> RequestOutput:
        """End a request at once, wherever it is; what it has brought so far is returned.

        Raises:
            UnknownRequestError: no such request waits or runs in any replica.
        """
        for replica in self.replicas:
            if replica.holds(request_id):
                return replica.abort(request_id)
        raise UnknownRequestError(
            f"unknown request {request_id!r}: it neither waits nor runs in any of {len(self.replicas)} replicas"
        )

    def advance(self, until_ns: int | None = None, max_steps: int | None = None) -> bool:
        """Let the next event happen.

        Args:
            until_ns: when the next request arrives: steps in which nothing is decided are taken at once, as far as they
                end by then. None: none arrives.
            max_steps: steps of all replicas at most.

        Returns:
            False where nothing happened: there is no event, or a step would begin and there were ``max_steps``.

        Raises:
            PolicyError: a policy broke a rule, and the config says to raise; the fleet is whole and can go on.
            RequestError: a request is not taken, and nobody is told by ``on_refused``.
        """
        if not self._events:
            return False
        time, kind, place = heappop(self._events)
        replica = self.replicas[place]
        self._now = max(self._now, time)
        if kind == FINISH:
            heappush(self._events, (time, BEGIN, place))
            replica.finish()
            return True
        follows: int | None = BEGIN
        try:
            replica.take(time, self.on_refused)
            if not replica.has_unfinished():
                follows = None
                return True
            left = None if max_steps is None else max_steps - self.num_steps
            if left == 0:
                return False
            num_leapt = replica.leap(until_ns, left)
            if not num_leapt:
                replica.begin()
                follows = FINISH
            self.num_steps += num_leapt or 1
            return True
        finally:
            if follows is None:
                replica.is_idle = True
            else:
                heappush(self._events, (replica.now_ns, follows, place))

    def settle(self) -> None:
        """Finish the steps that are under way, in the order of their ends, and begin none."""
        for replica in sorted(self.replicas, key=lambda replica: replica.now_ns):
            replica.settle()
            self._now = max(self._now, replica.now_ns)
        self._events = [(time, BEGIN, place) for time, _, place in self._events]
        heapify(self._events)

    def close(self) -> None:
        """Abort what is unfinished, and close every replica."""
        for replica in self.replicas:
            replica.engine.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _acts(plugin: object) -> bool:
    """Whether a plugin has a hook that runs in an engine."""
    return any(hook in (*DECISIONS, *OBSERVERS) for hook, _ in hook_methods(plugin))


def check_virtual(config: EngineConfig, plugins: Plugins) -> None:
    """Whether replicas can run on the backend that a config names, before one is made.

    Raises:
        ConfigError: it runs in real time, or does not say otherwise.
    """
    if not plugins.backend(config.backend.partition(":")[0]).virtual_time:
        raise ConfigError(_no_virtual_time(config, config.backend))


def _no_virtual_time(config: EngineConfig, backend: str) -> str:
    asked = f"replicas is {config.replicas}" if config.replicas > 1 else "a router is set"
    return (
        f"{asked}, and {backend} runs in real time: replicas need one time for all of them, which only a virtual clock "
        "gives; use a simulator, such as sim:llama-3.1-8b@h100, or leave replicas and router out (a backend with a "
        "virtual clock says so by virtual_time in its BackendEntry)"
    )
