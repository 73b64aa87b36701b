"""Each fault of an installed plugin is fatal at load, and names plugin, distribution, cause and remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchwright import ConfigError, PluginError, Policy, Request, Step, hookimpl
from batchwright.plugins import load_plugins
from fake_plugins import FakePoint, fake_entry, module_of

Points = list[FakePoint]


def _registers(**brought: Any) -> Any:
    """A plugin that registers these: kind to what the registration returns, or raises."""
    return module_of(**{f"register_{kind}": hookimpl(_constant(value)) for kind, value in brought.items()})


def _constant(value: Any) -> Callable[[], Any]:
    def register() -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    return register


class Plain(Policy):
    """Decides nothing."""


class Misspelt(Policy):
    @hookimpl
    def admision(self, step: Step) -> Any:
        yield step.running


class Unmarked(Policy):
    def chunking(self, step: Step, request: Request) -> int:
        return 1


class UnknownArgument(Policy):
    @hookimpl
    def chunking(self, step: Step, reqeust: Request) -> int:
        return 1


class WrongReturn(Policy):
    @hookimpl
    def chunking(self, step: Step, request: Request) -> str:
        return "all"


class WrongArgument(Policy):
    @hookimpl
    def chunking(self, step: Request, request: Request) -> int:
        return 1


POLICY_FAULTS = {
    Misspelt: ["hook 'admision': there is no such hook; did you mean 'admission'?"],
    Unmarked: ["function 'chunking': it is named like a hook and not marked; put @hookimpl above it"],
    UnknownArgument: ["hook 'chunking': unknown argument 'reqeust'; it can take step, request"],
    WrongReturn: ["hook 'chunking': annotated to return str; the hook returns int or None"],
    WrongArgument: ["hook 'chunking': argument 'step' is annotated Request; it is a Step"],
}


@pytest.mark.parametrize("policy", POLICY_FAULTS)
def test_a_fault_in_a_policy(policy: type[Policy]) -> None:
    with pytest.raises(PluginError) as caught:
        load_plugins(points=[FakePoint("acme", _registers(policies={"sjf": policy}), "acme-policies")])
    message = str(caught.value)
    for part in ["plugin 'acme' of acme-policies 1.0", "'sjf'", "--no-plugin", *POLICY_FAULTS[policy]]:
        assert part in message


def _observer(name: str, function: Callable[..., Any], *, marked: bool = True) -> Any:
    return module_of(**{name: hookimpl(function) if marked else function})


def _told(step: Step) -> None:
    """An observer's function."""


def _wrong_step(step: int) -> None:
    """An observer's function."""


def _wrong_admission(step: Step) -> int:
    return 5


MODULE_FAULTS: dict[str, tuple[Any, list[str]]] = {
    "it fails to import": (
        ImportError("No module named 'numpie'"),
        ["cannot be imported (acme): ImportError: No module named 'numpie'", "mend or uninstall it"],
    ),
    "it raises another error when it is imported": (ValueError("no"), ["cannot be imported (acme): ValueError: no"]),
    "a hook is misspelt": (
        _observer("step_finnished", _told),
        ["hook 'step_finnished': there is no such hook; did you mean 'step_finished'"],
    ),
    "a registration is misspelt": (
        _observer("register_policy", _constant({})),
        ["hook 'register_policy': there is no such hook; did you mean 'register_policies'"],
    ),
    "a hook takes an unknown argument": (
        _observer("request_admitted", lambda step, when: None),
        ["unknown argument 'when'; it can take step, request"],
    ),
    "an argument is annotated wrongly": (
        _observer("step_started", _wrong_step),
        ["argument 'step' is annotated int; it is a Step"],
    ),
    "a return is annotated wrongly": (
        _observer("admission", _wrong_admission),
        ["annotated to return int; the hook returns Iterable or None"],
    ),
    "specname is used": (
        module_of(mine=hookimpl(specname="step_started")(lambda step: None)),
        ["hook 'mine': specname is not supported; give the method the hook's name"],
    ),
    "it is a class": (Plain, ["names the class acme: an entry point names a module or an object that holds hookimpls"]),
    "a registration raises": (
        _registers(policies=RuntimeError("no licence")),
        ["register_policies() raised RuntimeError: no licence"],
    ),
    "a registration returns junk": (
        _registers(policies=["sjf"]),
        ["register_policies() must return a mapping of names, not ['sjf']"],
    ),
    "a registration returns nothing": (_registers(backends=None), ["register_backends() must return a mapping"]),
    "a policy is no policy": (
        _registers(policies={"sjf": object}),
        ["policy 'sjf' must be a subclass of batchwright.Policy, not <class 'object'>"],
    ),
    "a policy is an object": (
        _registers(policies={"sjf": Plain()}),
        ["policy 'sjf' must be a subclass of batchwright.Policy, not <"],
    ),
    "a backend is no entry": (
        _registers(backends={"tpu": 5}),
        ["backend 'tpu' must be a batchwright.BackendEntry, not 5"],
    ),
    "a predictor is no predictor": (
        _registers(predictors={"oracle": Plain}),
        ["predictor 'oracle' must be a subclass of batchwright.Predictor, not <class"],
    ),
    "a name cannot be written": (
        _registers(policies={"s j f": Plain}),
        ["'s j f' cannot name one of policies: letters, digits, '_', '-' and '.' only"],
    ),
    "a name is empty": (_registers(backends={"": fake_entry()}), ["'' cannot name one of backends"]),
    "a name is no text": (_registers(metrics={5: len}), ["5 cannot name one of metrics"]),
    "a name has a colon": (_registers(workloads={"a:b": len}), ["'a:b' cannot name one of workloads"]),
}


@pytest.mark.parametrize("fault", MODULE_FAULTS)
def test_a_fault_in_a_plugin(fault: str) -> None:
    value, parts = MODULE_FAULTS[fault]
    with pytest.raises(PluginError) as caught:
        load_plugins(points=[FakePoint("acme", value, "acme-policies")])
    for part in ["plugin 'acme'", "acme-policies 1.0", *parts]:
        assert part in str(caught.value)


@pytest.mark.parametrize("fault", MODULE_FAULTS)
def test_a_faulty_plugin_can_be_left_out(fault: str) -> None:
    value, _ = MODULE_FAULTS[fault]
    good = FakePoint("good", _registers(policies={"fine": Plain}), "good-policies")
    plugins = load_plugins(["acme"], [FakePoint("acme", value), good])
    assert list(plugins.plugins) == ["good"] and list(plugins.policies) == ["fine"]


def test_every_fault_says_how_to_go_on() -> None:
    for fault, (value, _) in MODULE_FAULTS.items():
        with pytest.raises(PluginError) as caught:
            load_plugins(points=[FakePoint("acme", value, "acme-policies")])
        assert "--no-plugin acme" in str(caught.value), fault


def _register_policies() -> dict[str, type[Policy]]:
    return {"sjf": Plain}


def test_an_unmarked_registration() -> None:
    module = module_of(register_policies=_register_policies)
    _register_policies.__module__ = module.__name__
    with pytest.raises(PluginError) as caught:
        load_plugins(points=[FakePoint("acme", module, "acme-policies")])
    message = str(caught.value)
    assert "function 'register_policies': it is named like a hook and not marked" in message
    assert "acme-policies 1.0" in message and "put @hookimpl above it" in message


def test_a_module_may_import_functions_named_like_hooks() -> None:
    from batchwright import hookspecs

    module = module_of(register_policies=hookspecs.register_policies, admission=hookspecs.admission)
    assert load_plugins(points=[FakePoint("acme", module)]).policies == {}


def test_two_distributions_with_one_entry_point_name() -> None:
    points = [
        FakePoint("fast", _registers(), "acme-policies", "acme.plugin"),
        FakePoint("fast", _registers(), "other-policies", "other.plugin"),
    ]
    with pytest.raises(PluginError) as caught:
        load_plugins(points=points)
    assert str(caught.value) == (
        "two distributions bring a plugin named 'fast': acme-policies 1.0 (acme.plugin) and other-policies 1.0 "
        "(other.plugin); uninstall one of them, or run with --no-plugin fast"
    )
    assert load_plugins(["fast"], points).plugins == {}


def test_one_distribution_found_twice_on_the_path_is_one() -> None:
    point = FakePoint("fast", _registers(policies={"sjf": Plain}), "acme-policies")
    again = FakePoint("fast", _registers(policies={"sjf": Plain}), "acme-policies")
    assert list(load_plugins(points=[point, again]).policies) == ["sjf"]


@pytest.mark.parametrize(
    ("kind", "value"), [("policies", Plain), ("backends", fake_entry()), ("workloads", len), ("metrics", len)]
)
def test_two_plugins_register_one_name(kind: str, value: Any) -> None:
    points = [
        FakePoint("alpha", _registers(**{kind: {"sjf": value}}), "alpha-dist"),
        FakePoint("beta", _registers(**{kind: {"sjf": value}}), "beta-dist"),
    ]
    with pytest.raises(PluginError) as caught:
        load_plugins(points=points)
    assert str(caught.value) == (
        f"plugin 'beta' of beta-dist 1.0 registers {kind} 'sjf', and so does plugin 'alpha' of alpha-dist 1.0; "
        "uninstall one, or run with --no-plugin beta"
    )
    assert load_plugins(["alpha"], points).origin == {(kind, "sjf"): "beta"}


def test_left_out_by_a_name_that_is_not_there() -> None:
    points = [FakePoint("tracing", _registers())]
    with pytest.raises(ConfigError, match=r"--no-plugin traicng: there is no such plugin; did you mean 'tracing'\?"):
        load_plugins(["traicng"], points)


def test_plugins_load_in_the_order_of_their_names_and_say_what_they_bring() -> None:
    points = [
        FakePoint("b", _registers(policies={"two": Plain}), "dist-b"),
        FakePoint("a", _registers(policies={"one": Plain}, backends={"tpu": fake_entry()}), "dist-a"),
        FakePoint("c", _observer("step_started", _told), "dist-c"),
    ]
    plugins = load_plugins(points=points)
    assert list(plugins.plugins) == ["a", "b", "c"] and list(plugins.policies) == ["one", "two"]
    assert plugins.origin == {("policies", "one"): "a", ("backends", "tpu"): "a", ("policies", "two"): "b"}
    assert plugins.plugins["a"].distribution == "dist-a 1.0"
    assert plugins.plugins["c"].active_hooks == ("step_started",) and plugins.plugins["a"].active_hooks == ()
    assert plugins.active("c") is plugins.plugins["c"].value


def test_names_that_are_not_there_get_the_nearest() -> None:
    plugins = load_plugins()
    with pytest.raises(ConfigError, match=r"unknown policy 'vllm-v1'; did you mean 'vllm_v1'\?"):
        plugins.policy("vllm-v1")
    with pytest.raises(ConfigError, match=r"unknown backend 'cdua'; did you mean 'cuda'\?"):
        plugins.backend("cdua")
    with pytest.raises(ConfigError, match=r"plugins: unknown plugin 'polices'; did you mean 'policies'\?"):
        plugins.active("polices")
    with pytest.raises(ConfigError, match="'policies' only registers things and has no hooks to run; name its policy"):
        plugins.active("policies")


class Annotated(Policy):
    """Every way to annotate that is right."""

    @hookimpl
    def admission(self, step: Step) -> list[Request] | None:
        return None

    @hookimpl
    def chunking(self, request: Any, step: object) -> int | None:
        return None

    @hookimpl
    def reservation(self, step: "Undefined", request) -> "int":  # type: ignore  # noqa: F821, UP037
        return 0

    @hookimpl
    def arrival(self, request: Request) -> None:
        """Always declines."""

    @hookimpl
    def request_finished(self) -> None:
        """Takes nothing."""


def test_right_annotations_pass() -> None:
    from typing import Annotated as Marked

    def preemption(self: Policy, step: Step, request: Request) -> Marked[Request | None, "the victim"]:
        return None

    Annotated.preemption = hookimpl(preemption)  # type: ignore[attr-defined]
    preemption.__annotations__["return"] = Marked[Request | None, "the victim"]
    Annotated.reservation.__annotations__["step"] = "Undefined"  # as it stands where annotations are evaluated late
    assert load_plugins(points=[FakePoint("acme", _registers(policies={"sjf": Annotated}))]).policies
