"""Binding hooks to what the scheduler calls.

A pluggy call costs 1.4 µs and a direct one 0.05, so the scheduler does not go through pluggy: decisions are bound once,
and again when plugins change. With one implementation and no wrapper the bound callable is the plugin's own method;
several are tried in pluggy's order until one answers; wrappers bring pluggy's own call back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import pluggy
from pluggy import HookImpl

from batchwright import hookspecs
from batchwright.active_policy import ActivePolicy
from batchwright.errors import PluginError, PolicyError
from batchwright.hookspecs import DECISIONS, IN_STEP, OBSERVERS, ROUTING
from batchwright.neutral import Neutral
from batchwright.plugin_checks import check_plugin, hook_methods

_ARGUMENTS = {
    "admission": ("step",),
    "chunking": ("step", "request"),
    "reservation": ("step", "request"),
    "preemption": ("step", "request"),
    "arrival": ("request",),
    "predict_output": ("request",),
    "step_started": ("step",),
    "step_finished": ("step", "result"),
    "steps_leapt": ("leap",),
    "request_arrived": ("request",),
    "request_admitted": ("step", "request"),
    "request_preempted": ("step", "victim", "request"),
    "request_finished": ("request", "reason"),
    "policy_attached": ("step",),
}

_NEUTRAL = "the core"

Decision = Callable[..., Any]
Observer = tuple[Callable[..., Any], str]


class Decisions:
    """One engine's plugins, and its decision and observer hooks bound to plain callables.

    Attributes:
        policy: the active policy.
        policy_alone: no plugin decides or wraps a decision of a step beside it.
        neutral: what answers where no plugin does.
        violation: in strict mode, what an observer tried to write to; raised with the next step.
        admission, chunking, reservation, preemption, arrival, predict_output: what to call, or None where nobody
            implements it.
        step_started, step_finished, steps_leapt, request_arrived, request_admitted, request_preempted,
            request_finished: pairs of a callable and the name of its plugin.
    """

    admission: Decision | None
    chunking: Decision | None
    reservation: Decision | None
    preemption: Decision | None
    arrival: Decision | None
    predict_output: Decision | None
    step_started: tuple[Observer, ...]
    step_finished: tuple[Observer, ...]
    steps_leapt: tuple[Observer, ...]
    request_arrived: tuple[Observer, ...]
    request_admitted: tuple[Observer, ...]
    request_preempted: tuple[Observer, ...]
    request_finished: tuple[Observer, ...]
    policy_attached: tuple[Observer, ...]

    def __init__(self, policy: ActivePolicy, neutral: Neutral, *, strict: bool = False) -> None:
        """Takes the active policy, and what answers where it does not; ``strict``: hooks are shown all read-only."""
        self.neutral = neutral
        self.violation: PolicyError | None = None
        self._strict = strict
        self._plugins: dict[str, object] = {}
        self._who: dict[str, str] = {}
        self._build(policy, {})

    def register(self, plugin: object, name: str | None = None) -> None:
        """Add a plugin's decision and observer hooks.

        Raises:
            PluginError: a hook of it is misspelt or mistyped, or the name is taken.
        """
        name = name if name is not None else _name_of(plugin)
        if inspect.isclass(plugin):
            raise PluginError(f"plugin {name!r} is a class: give an object that has the hooks")
        if name in self._plugins or any(plugin is p for p in self._plugins.values()):
            raise PluginError(f"plugin {name!r} is registered twice; give one of the two another name")
        check_plugin(plugin, name)
        if not any(hook in (*DECISIONS, *OBSERVERS) for hook, _ in hook_methods(plugin)):
            routes = any(hook in ROUTING for hook, _ in hook_methods(plugin))
            remedy = (
                "routing runs in a fleet only: set replicas or router" if routes else "mark its methods with @hookimpl"
            )
            raise PluginError(f"plugin {plugin!r} has no hook that could run: {remedy}")
        self._build(self.policy, {**self._plugins, name: plugin})

    def swap_policy(self, policy: ActivePolicy) -> None:
        """Put another policy in the place of the active one.

        Raises:
            PluginError: it has the name of a registered plugin; nothing was changed.
        """
        self._build(policy, self._plugins)

    def _build(self, policy: ActivePolicy, plugins: dict[str, object]) -> None:
        """A manager with the policy and plugins, bound; a fault leaves everything as it was."""
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(self.neutral, _NEUTRAL)  # the first registered is asked last
        for name, plugin in (*policy.parts.items(), *plugins.items()):
            if manager.has_plugin(name):
                raise PluginError(f"a plugin and a policy are both named {name!r}; give one of the two another name")
            manager.register(plugin, name)
        self._manager, self.policy, self._plugins = manager, policy, plugins
        self.policy_alone = not any(hook in IN_STEP for p in plugins.values() for hook, _ in hook_methods(p))
        self.bind()

    def who(self, hook: str) -> str:
        """Name of the plugin that decided last, for errors."""
        return self._who.get(hook, self.policy.name)

    def bind(self) -> None:
        """Bind all hooks anew; called when plugins change."""
        self._who = {}
        for hook in DECISIONS:
            setattr(self, hook, self._bind_decision(hook))
        for hook in OBSERVERS:
            calls = reversed(getattr(self._manager.hook, hook).get_hookimpls())
            setattr(self, hook, tuple((_direct(i, hook), i.plugin_name) for i in calls))
        if self._strict:
            self._put_behind_glass()

    def _put_behind_glass(self) -> None:
        """Strict mode: policies, and plugins that decide, see images of what is there."""
        from batchwright.strict import Glass

        glass = Glass({name: part.policy for name, part in self.policy.parts.items()}, self._note_violation)
        deciding = {n for n, p in self._plugins.items() if any(hook in DECISIONS for hook, _ in hook_methods(p))}
        for hook in DECISIONS:
            decide = getattr(self, hook)
            if decide is not None:
                setattr(self, hook, glass.decision(hook, decide))
        for hook in OBSERVERS:
            bound: tuple[Observer, ...] = getattr(self, hook)
            watched = {*self.policy.parts, *deciding}
            setattr(self, hook, tuple((glass.observer(hook, n, c) if n in watched else c, n) for c, n in bound))

    def _note_violation(self, error: PolicyError) -> None:
        self.violation = self.violation or error

    def _bind_decision(self, hook: str) -> Decision | None:
        caller = getattr(self._manager.hook, hook)
        everybody = list(reversed(caller.get_hookimpls()))
        calls = [i for i in everybody if i.plugin_name != _NEUTRAL]  # the core gives those answers itself, faster
        if not calls:
            return None
        self._who[hook] = calls[0].plugin_name
        if any(i.wrapper or i.hookwrapper for i in calls):
            names = _ARGUMENTS[hook]
            self._who[hook] = " + ".join(i.plugin_name for i in calls)

            def through_pluggy(*args: Any) -> Any:
                return caller(**dict(zip(names, args, strict=True)))

            return through_pluggy
        direct = [(_direct(i, hook), i.plugin_name) for i in calls]
        if len(direct) == 1:
            return direct[0][0]
        who = self._who

        def first_answer(*args: Any) -> Any:
            for call, name in direct:
                who[hook] = name
                answer = call(*args)
                if answer is not None:
                    return answer
            return None

        return first_answer


def _direct(impl: HookImpl, hook: str) -> Decision:
    """The implementation itself where it takes all arguments in the order of the specification."""
    function: Decision = impl.function
    names = _ARGUMENTS[hook]
    if tuple(impl.argnames) == names:
        return function
    places = [names.index(n) for n in impl.argnames]

    @wraps(function)
    def some(*args: Any) -> Any:
        return function(*[args[p] for p in places])

    return some


def _name_of(plugin: object) -> str:
    return getattr(plugin, "name", None) or getattr(plugin, "__name__", None) or type(plugin).__name__
