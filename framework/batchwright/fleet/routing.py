"""Asking a router, and holding its answers to the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pluggy

from batchwright import hookspecs
from batchwright.errors import PluginError, PolicyError, Written, place_of
from batchwright.fleet.view import FleetView
from batchwright.hookspecs import hookimpl
from batchwright.plugin_checks import check_plugin, hook_methods
from batchwright.request import Request
from batchwright.router import Router
from batchwright.routers.round_robin import RoundRobin

HOOK = "routing"


class Routing:
    """The bound ``routing`` hook of one fleet, each answer checked.

    Attributes:
        events: faults of the router, with ``on_policy_error: fallback``.
    """

    def __init__(
        self,
        name: str,
        router: Router,
        plugins: Sequence[object] = (),
        *,
        on_policy_error: Literal["raise", "fallback"] = "raise",
        strict: bool = False,
    ) -> None:
        """Takes a router under its name, and plugins that may answer in its place or wrap it.

        Raises:
            PluginError: a hook is misspelt or mistyped, or the router does not implement ``routing``.
        """
        check_plugin(router, name)
        if not routes(router):
            raise PluginError(
                f"router {name!r} has no hook 'routing': mark def routing(self, fleet, request) with @hookimpl"
            )
        self.events: list[dict[str, Any]] = []
        self._raises = on_policy_error == "raise"
        self._default = RoundRobin()
        self._num_asked = 0
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(_Default(self._default), "the core")  # the first registered is asked last
        manager.register(_Only(router), name)
        for plugin in plugins:
            manager.register(_Only(plugin))
        self._who = " + ".join([name, *(_name_of(plugin) for plugin in plugins)])
        self._ask = self._make_ask(manager, name, router, strict)

    @staticmethod
    def _make_ask(manager: pluggy.PluginManager, name: str, router: Router, strict: bool) -> Any:
        def ask(fleet: FleetView, request: Request) -> Any:
            return manager.hook.routing(fleet=fleet, request=request)

        if not strict:
            return ask
        from batchwright.strict import Glass

        # What a router tries to write to is raised into it, and out of it: nothing has to be noted beside.
        return Glass({name: router}, lambda error: None).decision(HOOK, ask)

    def choose(self, fleet: FleetView, request: Request) -> int:
        """The replica that takes this request.

        Raises:
            PolicyError: the router raised, or answered something else than an index of a replica, and the config says
                to raise.
        """
        try:
            answer = self._checked(fleet, request)
        except PolicyError as error:
            if self._raises:
                raise
            self.events.append({"kind": "policy_fault", "plugin": error.plugin, "hook": HOOK, "error": str(error)})
            answer = self._default.routing(fleet, request)
        self._num_asked += 1
        return answer

    def _checked(self, fleet: FleetView, request: Request) -> int:
        about = f"request {request.request_id!r}: "
        try:
            answer = self._ask(fleet, request)
        except Written as error:
            raise self._error("write", about + str(error), error.what) from error
        except Exception as error:
            message = f"{about}it raised {type(error).__name__}: {error}{place_of(error)}"
            raise self._error("raised", message, error) from error
        if not isinstance(answer, int) or isinstance(answer, bool):
            raise self._error("type", f"{about}it must return an int, the index of a replica, not {answer!r}", answer)
        if not 0 <= answer < len(fleet):
            last = len(fleet) - 1
            raise self._error("range", f"{about}there is no replica {answer}, they are 0 to {last}", answer)
        return answer

    def _error(self, rule: str, message: str, value: object) -> PolicyError:
        return PolicyError(message, plugin=self._who, hook=HOOK, step=self._num_asked, rule=rule, value=value)


def routes(plugin: object) -> bool:
    """Whether it implements ``routing``."""
    return any(hook == HOOK for hook, _ in hook_methods(plugin))


class _Only:
    """Of a plugin the hook ``routing`` alone: its others belong to engines."""

    def __init__(self, plugin: Any) -> None:
        self.routing = plugin.routing


class _Default:
    """What answers where no router does."""

    def __init__(self, router: RoundRobin) -> None:
        self._router = router

    @hookimpl
    def routing(self, fleet: FleetView, request: Request) -> int:
        """As the default router."""
        return self._router.routing(fleet, request)


def _name_of(plugin: object) -> str:
    return getattr(plugin, "name", None) or getattr(plugin, "__name__", None) or type(plugin).__name__
