"""Distributions found through ``importlib.metadata``, as pip installs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchwright import ConfigError, Engine, EngineConfig, PluginError
from batchwright.plugins import load_plugins
from fake_backend import FakeBackend
from fake_plugins import install
from faulty import FAULTS, Culprit
from toolbox import Tape, make_request, play

TRACER = '''
"""Observes, and admits nothing of client "blocked" while others wait."""

from batchwright import hookimpl

told = []


@hookimpl
def request_finished(request, reason):
    told.append((request.request_id, reason))


@hookimpl(wrapper=True)
def chunking(step, request):
    return min(2, (yield))
'''
BROKEN = "import numpie_that_is_not_there\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_first_party_policies_and_backends_come_the_same_way() -> None:
    plugins = load_plugins()
    assert {("policies", "prefill_first"), ("backends", "sim"), ("backends", "cpu")} <= set(plugins.origin)
    assert plugins.plugins["policies"].distribution.startswith("batchwright ")
    assert "prefill_first" not in load_plugins(["policies"]).policies


def test_an_installed_plugin_runs_only_where_a_config_lists_it(site: Path) -> None:
    install(site, "acme-tracer", {"tracer": "acme_tracer_module"}, {"acme_tracer_module.py": TRACER})
    for listed in ([], ["tracer"]):
        tape = Tape()
        engine = Engine(EngineConfig(plugins=listed), backend=FakeBackend(), plugins=[tape])
        assert "tracer" in engine.plugins.plugins
        play(engine, [make_request("a", 4, 2)])
        import acme_tracer_module  # type: ignore[import-not-found]

        assert acme_tracer_module.told == ([("a", "length")] if listed else [])
        assert [n for s in tape.steps for _, n in s.batch] == ([2, 2, 1] if listed else [4, 1])
    with pytest.raises(ConfigError, match=r"unknown plugin 'trecer'; did you mean 'tracer'\?"):
        Engine(EngineConfig(plugins=["trecer"]), backend=FakeBackend())


def test_a_broken_distribution_is_fatal_until_it_is_left_out(site: Path) -> None:
    install(site, "acme-broken", {"broken": "acme_broken_module"}, {"acme_broken_module.py": BROKEN})
    with pytest.raises(PluginError) as caught:
        Engine(EngineConfig(), backend=FakeBackend())
    assert str(caught.value) == (
        "plugin 'broken' of acme-broken 1.0 cannot be imported (acme_broken_module): ModuleNotFoundError: No module "
        "named 'numpie_that_is_not_there'; mend or uninstall it, or run with --no-plugin broken"
    )
    # Left out, it must not come back later, when the core makes a default policy in the middle of a run.
    config = EngineConfig(no_plugins=["broken"], on_policy_error="fallback")
    engine = Engine(config, backend=FakeBackend(num_blocks=18), policy=Culprit(FAULTS["admission raises"]))
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert engine.scheduler.num_policy_faults > 0
    engine.swap_policy("stall_free")


def test_an_object_that_is_not_in_the_module(site: Path) -> None:
    install(site, "acme-typo", {"typo": "acme_typo_module:plugn"}, {"acme_typo_module.py": "plugin = 5\n"})
    with pytest.raises(PluginError, match=r"plugin 'typo' of acme-typo 1.0 cannot be imported .*AttributeError.*plugn"):
        load_plugins()


def test_two_distributions_bring_a_plugin_of_one_name(site: Path) -> None:
    for name in ("acme-one", "acme-two"):
        module = name.replace("-", "_") + "_module"
        install(site, name, {"fast": module}, {f"{module}.py": "x = 1\n"})
    with pytest.raises(PluginError, match=r"two distributions bring a plugin named 'fast': acme-.* and acme-"):
        load_plugins()
    assert "fast" not in load_plugins(["fast"]).plugins


def test_a_name_of_a_first_party_policy_is_taken(site: Path) -> None:
    text = """
    from batchwright import Policy, hookimpl

    class Mine(Policy):
        pass

    @hookimpl
    def register_policies():
        return {"prefill_first": Mine}
    """
    install(site, "acme-shadow", {"shadow": "acme_shadow_module"}, {"acme_shadow_module.py": text})
    with pytest.raises(PluginError) as caught:
        load_plugins()
    message = str(caught.value)
    assert (
        "plugin 'shadow' of acme-shadow 1.0 registers policies 'prefill_first', and so does plugin 'policies'"
        in message
    )
    assert "run with --no-plugin shadow" in message
