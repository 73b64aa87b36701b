"""Routers that break the rules, plugins beside them, and strict mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright import (
    ConfigError,
    Engine,
    EngineConfig,
    Fleet,
    Params,
    PluginError,
    PolicyError,
    Request,
    Router,
    hookimpl,
)
from batchwright.fleet.view import FleetView
from batchwright.plugins import load_plugins
from batchwright.resolve import resolve_router
from fake_backend import FakeBackend
from fake_plugins import FakePoint, module_of
from fleet_toolbox import MS, To, drive, make_fleet
from toolbox import make_request


def bad(answer: Any) -> To:
    return To({"b": answer})


def three() -> list[Request]:
    return [make_request("0:a", 4, 2), make_request("b", 4, 2), make_request("1:c", 4, 2)]


def boom(fleet: FleetView, request: Request) -> int:
    raise KeyError("no such thing")


WRONG = [
    (2, "range", "request 'b': there is no replica 2, they are 0 to 1"),
    (-1, "range", "there is no replica -1"),
    (1.0, "type", "it must return an int, the index of a replica, not 1.0"),
    (True, "type", "not True"),
    ("1", "type", "not '1'"),
    (boom, "raised", "it raised KeyError: 'no such thing'"),
]


@pytest.mark.parametrize(("answer", "rule", "words"), WRONG)
def test_a_wrong_answer_is_an_error_that_names_the_router(answer: Any, rule: str, words: str) -> None:
    with make_fleet(2, bad(answer)) as fleet:
        first, second, third = three()
        fleet.add_request(first)
        with pytest.raises(PolicyError) as caught:
            fleet.add_request(second)
        error = caught.value
        assert (error.plugin, error.hook, error.rule, error.step) == ("To", "routing", rule, 1)
        assert words in str(error)
        # The fleet is whole: the request is nowhere, and the others go on.
        assert not any(replica.holds("b") for replica in fleet.replicas)
        assert drive(fleet, [third]) == [1]
        assert first.finish_reason == "length"


@pytest.mark.parametrize(("answer", "rule", "words"), WRONG)
def test_with_fallback_the_default_router_answers(answer: Any, rule: str, words: str) -> None:
    with make_fleet(2, bad(answer), on_policy_error="fallback") as fleet:
        assert drive(fleet, three()) == [0, 0, 1]
        (event,) = fleet.events
    assert (event["kind"], event["plugin"], event["hook"]) == ("policy_fault", "To", "routing")
    assert words in event["error"]


def test_who_declines_leaves_it_to_the_default_router() -> None:
    with make_fleet(3, To(dict.fromkeys("abcd"))) as fleet:
        assert drive(fleet, [make_request(name, 4, 1) for name in "abcd"]) == [0, 1, 2, 0]
        assert fleet.events == []


class Pin:
    """Keeps requests of one client on replica 1."""

    name = "pin"

    @hookimpl
    def routing(self, request: Request) -> int | None:
        return 1 if request.client_id == "pinned" else None


class Shift:
    """A wrapper: one further than the router said."""

    def __init__(self) -> None:
        self.arrived: list[str] = []

    @hookimpl(wrapper=True)
    def routing(self, fleet: FleetView) -> Any:
        return ((yield) + 1) % len(fleet)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        self.arrived.append(request.request_id)


def test_plugins_are_asked_before_the_router_and_wrap_it() -> None:
    requests = [make_request("0:a", 4, 1), make_request("0:b", 4, 1, client_id="pinned")]
    with make_fleet(3, To(), plugins=[Pin()]) as fleet:
        assert drive(fleet, requests) == [0, 1]
    shift = Shift()
    with make_fleet(3, To(), plugins=[shift]) as fleet:
        assert drive(fleet, [make_request("0:a", 4, 1), make_request("2:b", 4, 1)]) == [1, 0]
    assert sorted(shift.arrived) == ["0:a", "2:b"]  # its observers run in the replicas
    with make_fleet(2, To({"b": 9}), plugins=[Pin()]) as fleet, pytest.raises(PolicyError, match=r"'To \+ pin'"):
        drive(fleet, three())


def test_observers_of_a_router_are_told_of_every_replica() -> None:
    class Learns(To):
        def __init__(self) -> None:
            super().__init__()
            self.ended: list[str] = []

        @hookimpl
        def request_finished(self, request: Request) -> None:
            self.ended.append(request.request_id)

    router = Learns()
    with make_fleet(2, router) as fleet:
        drive(fleet, three())
    assert sorted(router.ended) == ["0:a", "1:c", "b"]


def test_a_listed_plugin_routes_in_a_fleet() -> None:
    points = [FakePoint("pin", module_of(routing=hookimpl(lambda request: 1)), target="acme")]
    installed = load_plugins(points=[*_installed(), *points])
    config = EngineConfig(replicas=2, plugins=["pin"])
    with Fleet(config, backend=FakeBackend, installed=installed) as fleet:
        assert drive(fleet, [make_request(name, 4, 1) for name in "abc"]) == [1, 1, 1]


def test_what_only_routes_is_refused_by_an_engine() -> None:
    with pytest.raises(
        PluginError, match="no hook that could run: routing runs in a fleet only: set replicas or router"
    ):
        Engine(EngineConfig(), plugins=[Pin()])


def _installed() -> list[Any]:
    from importlib.metadata import entry_points

    return list(entry_points(group="batchwright"))


# Strict mode --------------------------------------------------------------------------------------------------------


class Writes(Router):
    class Params(Params):
        share: int = 1

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    @hookimpl
    def routing(self, fleet: FleetView, request: Request) -> int:
        if self.what == "request":
            request.priority = 5
        elif self.what == "params":
            self.params.share = 2
        elif self.what == "private":
            return len(request._known) % 2
        elif self.what == "swallow":
            try:
                request.priority = 5
            except Exception:
                return 0
        return int(fleet[1].num_cached(request) > fleet[0].num_cached(request))


@pytest.mark.parametrize("what", ["request", "params", "private", "swallow"])
def test_in_strict_mode_a_write_is_an_error_that_names_it(what: str) -> None:
    with make_fleet(2, Writes(what), strict=True) as fleet:
        with pytest.raises(PolicyError) as caught:
            fleet.add_request(make_request("a", 4, 1))
        assert caught.value.rule == "write" and caught.value.plugin == "Writes"


def test_in_strict_mode_an_honest_router_decides_the_same() -> None:
    for strict in (False, True):
        with make_fleet(2, Writes("nothing"), strict=strict) as fleet:
            requests = [make_request("a", [2] * 12, 1), make_request("b", [1] * 13, 1, arrival_ns=9 * MS)]
            fleet.replicas[1].route(make_request("before", [1] * 12, 1), None)
            fleet.replicas[1].is_idle = False
            fleet._events.append((0, 2, 1))
            assert drive(fleet, requests) == [0, 1]


# Loading ------------------------------------------------------------------------------------------------------------


def test_what_is_no_router_is_refused_at_load() -> None:
    class Empty(Router):
        pass

    class Misspelt(Router):
        @hookimpl
        def rooting(self, fleet: Any, request: Any) -> int:
            return 0

    class Wrong(Router):
        @hookimpl
        def routing(self, fleet: FleetView, request: Request) -> str:
            return "0"

    def load(value: Any) -> None:
        load_plugins(points=[FakePoint("acme", module_of(register_routers=hookimpl(lambda: {"mine": value})))])

    with pytest.raises(PluginError, match=r"router 'mine' must be a subclass of batchwright\.Router"):
        load(int)
    with pytest.raises(PluginError, match="there is no such hook; did you mean 'routing'"):
        load(Misspelt)
    with pytest.raises(PluginError, match="annotated to return str; the hook returns int or None"):
        load(Wrong)
    with pytest.raises(PluginError, match=r"router 'Empty' has no hook 'routing': mark def routing"):
        make_fleet(2, Empty())


def test_a_router_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from batchwright import Params, Router, hookimpl\n\n"
        "class MineParams(Params):\n    place: int = 1\n\n"
        "class Mine(Router):\n    Params = MineParams\n\n"
        "    @hookimpl\n    def routing(self):\n        return self.params.place\n"
    )
    name, router = resolve_router(f"{file}:Mine:place=0")
    assert (name, router.describe(name)) == ("Mine", {"use": "Mine", "place": 0})
    with make_fleet(2, router) as fleet:
        assert drive(fleet, [make_request("a", 4, 1)]) == [0]
    with pytest.raises(ConfigError, match="has no router class 'Yours'; choices: Mine"):
        resolve_router(f"{file}:Yours")
