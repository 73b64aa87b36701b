"""Versions of vLLM that are let in, and the surfaces of it that are used; vLLM is needed only for a look at it."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchwright.errors import ConfigError
from batchwright_backends.vllm import versions
from batchwright_backends.vllm.honoured import HONOURED
from batchwright_backends.vllm.lab.options import ELSEWHERE
from batchwright_backends.vllm.lacking import main, missing
from batchwright_backends.vllm.surfaces import ADAPTERS, GUEST, HOOKS, HOST, LAB, SURFACES, USERS, Surface
from batchwright_backends.vllm.surfaces_beside import SURFACES_BESIDE
from batchwright_backends.vllm.versions import check_version, is_tested

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "backends" / "batchwright_backends" / "vllm"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TABLES = [PACKAGE / "surfaces.py", PACKAGE / "surfaces_beside.py"]
ALL = (*SURFACES, *SURFACES_BESIDE)
HAS_VLLM = importlib.util.find_spec("vllm") is not None


@pytest.mark.parametrize(
    ("version", "tested"),
    [("0.32.0", True), ("0.32.1.post2", True), ("0.31.9", False), ("0.33.0", False), ("1.32.0", False), (None, False)],
)
def test_versions_that_were_run(version: str | None, tested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(versions.ANY_VERSION, raising=False)
    monkeypatch.setattr(versions, "vllm_version", lambda: version)
    assert is_tested(version) == tested
    if tested:
        check_version()
        return
    with pytest.raises(
        ConfigError, match=r"run with vllm>=0\.32,<0\.33 only: install that, or set BATCHWRIGHT_VLLM_ANY"
    ):
        check_version()


def test_another_version_can_be_tried(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(versions, "vllm_version", lambda: "0.33.0")
    monkeypatch.setenv(versions.ANY_VERSION, "0")
    with pytest.raises(ConfigError):
        check_version()
    monkeypatch.setenv(versions.ANY_VERSION, "1")
    check_version()
    assert "this is vLLM 0.33.0; Batchwright was run with" in caplog.text


def test_the_extra_says_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["vllm"] == [f"vllm{versions.tested_range()}"]


def members_of(name: str, user: str) -> set[str]:
    """What the table says of a class for one of ours; of its methods also the parameters that are given by name."""
    listed = [m for s in ALL if s.name == name and user in s.adapters for m in s.members]
    made = [m.partition("(")[2].rstrip(")").split(", ") for m in listed if m.startswith("__init__(")]
    return {m.partition("(")[0] for m in listed} | {name for names in made for name in names}


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imports_of(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """What a file imports of vLLM: its own name for it to the module and the name there."""
    return {
        name.asname or name.name: (str(node.module), name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm"
        for name in node.names
    }


def test_whatever_is_imported_of_vllm_stands_in_the_table() -> None:
    known = {(surface.module, surface.name) for surface in ALL}
    used = {what: file.name for file in SOURCES for what in imports_of(tree_of(file)).values()}
    assert {what: file for what, file in used.items() if what not in known} == {}, "put them into surfaces*.py"
    assert len(used) > 20 and {"engine.py", "arguments.py", "series.py"} <= set(used.values())


def test_vllm_is_imported_so_that_the_table_can_be_held_to_it() -> None:
    """``from vllm.x import y``, and other modules by names that the table has."""
    modules = {module for surface in ALL for module in (surface.module, *surface.before)}
    for file in SOURCES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Import):
                assert not [n.name for n in node.names if n.name.partition(".")[0] == "vllm"], file.name
            if (
                file not in TABLES
                and isinstance(node, ast.Constant)
                and re.fullmatch(r"vllm(\.\w+){2,}", str(node.value))
            ):
                assert node.value in modules, file.name


def test_whatever_is_used_of_what_is_imported_stands_in_the_table() -> None:
    """Attributes of a class, and parameters that it is made with."""
    used: dict[str, set[str]] = {}
    for file in SOURCES:
        tree = tree_of(file)
        names = {ours: theirs for ours, (_, theirs) in imports_of(tree).items()}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
                used.setdefault(names[node.value.id], set()).add(node.attr)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                used.setdefault(names[node.func.id], set()).update(k.arg for k in node.keywords if k.arg)
    assert not lacking(used, USERS)
    assert len(used) > 10


GUEST_HOLDERS = {
    "me": "Scheduler",
    "scheduler": "Scheduler",
    "theirs": "Request",
    "_manager": "KVCacheManager",
    "manager": "KVCacheManager",
    "block_pool": "BlockPool",
    "coordinator": "KVCacheCoordinator",
}
CONFIGS = {
    "parallel_config": "ParallelConfig",
    "scheduler_config": "SchedulerConfig",
    "model_config": "ModelConfig",
    "cache_config": "CacheConfig",
    "vllm_config": "VllmConfig",
}
HOLDERS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "guest*.py": ((GUEST,), GUEST_HOLDERS),
    "plan.py": ((GUEST,), GUEST_HOLDERS),
    "expressible.py": ((GUEST,), {"config": "VllmConfig", "scheduler": "SchedulerConfig", **CONFIGS}),
    "honoured.py": (ADAPTERS, {"config": "VllmConfig", "parallel": "ParallelConfig", **CONFIGS}),
    "traffic.py": (ADAPTERS, {"config": "VllmConfig", "limits": "SchedulerConfig", **CONFIGS}),
    "choosing.py": ((GUEST,), CONFIGS),
    "carried.py": (
        (HOST,),
        {
            "config": "VllmConfig",
            "scheduler": "SchedulerConfig",
            "kv_cache": "KVCacheConfig",
            "parallel": "ParallelConfig",
            "model": "ModelConfig",
            "request": "Request",
            "params": "SamplingParams",
        },
    ),
    "host.py": (
        (HOST,),
        {
            "limits": "SchedulerConfig",
            "cache": "CacheConfig",
            "kv_cache_config": "KVCacheConfig",
            "scheduler_output": "SchedulerOutput",
            **CONFIGS,
        },
    ),
    "answers.py": ((HOST,), {"theirs": "Request", "output": "ModelRunnerOutput"}),
    "flights.py": ((HOST,), {"told": "SchedulerOutput"}),
    "grammars.py": (
        (HOST,),
        {
            "theirs": "Request",
            "constraint": "StructuredOutputRequest",
            "manager": "StructuredOutputManager",
            "_manager": "StructuredOutputManager",
        },
    ),
    "seats.py": ((HOST,), {"theirs": "Request", "cached": "CachedRequestData"}),
    "told.py": ((HOST,), {"theirs": "Request"}),
    "translation.py": (ADAPTERS, {"request": "Request", "params": "SamplingParams"}),
    "stop_text.py": (ADAPTERS, {"params": "SamplingParams", "theirs": "Request"}),
    "attaching.py": (ADAPTERS, {"scheduler": "SchedulerInterface"}),
    "ledger.py": (
        ADAPTERS,
        {
            "told": "SchedulerOutput",
            "cached": "CachedRequestData",
            "new": "NewRequestData",
            "some": "EngineCoreOutputs",
            "one": "EngineCoreOutput",
            "scheduler": "SchedulerInterface",
        },
    ),
    "recording.py": (ADAPTERS, {"theirs": "Request", "request": "Request", "params": "SamplingParams"}),
    "lab/engine.py": (
        (LAB,),
        {"engine": "LLMEngine", "engine_core": "InprocClient", "core": "EngineCore", "model": "ModelConfig", **CONFIGS},
    ),
    "lab/drive.py": ((LAB,), {"engine": "LLMEngine", "_engine": "LLMEngine"}),
    "lab/run.py": ((LAB,), {"engine": "LLMEngine", "engine_core": "InprocClient", **CONFIGS}),
}
"""Files to the ones of ours that they belong to, and to names under which they hold objects of vLLM's."""


def lacking(used: dict[str, set[str]], users: Iterable[str]) -> dict[str, set[str]]:
    """Of what is used of classes, what the table does not say for any of ours."""
    said = {name: set().union(*(members_of(name, user) for user in users)) for name in used}
    return {name: found - said[name] for name, found in used.items() if found - said[name]}


@pytest.mark.parametrize("files", HOLDERS)
def test_whatever_is_read_of_vllms_objects_stands_in_the_table(files: str) -> None:
    """By the names under which a file holds them."""
    users, holders = HOLDERS[files]
    seen: dict[str, set[str]] = {}
    for file in PACKAGE.glob(files):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Attribute):
                held = node.value
                name = held.id if isinstance(held, ast.Name) else getattr(held, "attr", None)
                if name in holders:
                    seen.setdefault(holders[str(name)], set()).add(node.attr)
    assert seen
    for user in users:
        assert lacking(seen, (user,)) == {}, "put them into surfaces*.py"


def test_arguments_of_the_lab_stand_in_the_table() -> None:
    assert set(ELSEWHERE) <= members_of("EngineArgs", LAB)


def test_hooks_of_the_table_are_known() -> None:
    assert {hook for surface in ALL for hook in surface.hooks} <= set(HOOKS) == set(HONOURED)
    assert all(set(surface.adapters) <= set(USERS) for surface in ALL)
    assert all(set(words) == set(ADAPTERS) for words in HONOURED.values())


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("vllm_that_moved")
    exec(
        "class Thing:\n    field: int\n    @staticmethod\n    def does(a, b): ...\n    def takes(self, **all): ...\n",
        made.__dict__,
    )
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_what_is_missing_is_named(module: ModuleType) -> None:
    name = module.__name__
    has = ("field", "does(a, b)", "does(b)", "takes(whatever)")
    lacks = ("gone", "does(c)", "field(a)")
    found = missing(
        [
            Surface((GUEST,), name, "Thing", (*has, *lacks), ("admission",)),
            Surface(ADAPTERS, name, "Nothing"),
            Surface(ADAPTERS, f"{name}.below", "Thing"),
        ]
    )
    assert [one.what for one in found[:3]] == [f"{name}.Thing.{member}" for member in lacks]
    assert found[0].adapters == (GUEST,) and found[0].hooks == ("admission",)
    assert found[3].what.startswith(f"{name}.Nothing (AttributeError: ")
    assert found[4].what.startswith(f"{name}.below.Thing (ModuleNotFoundError: ")


def sets_up(app: object, state: Any) -> None:
    """As a function of vLLM's that others read the results of."""
    state.ready = True
    other = state
    other.alive = True


def test_what_a_function_sets_on_what_it_is_given_is_found() -> None:
    found = missing([Surface(ADAPTERS, __name__, "sets_up", ("ready", "alive"))])
    assert [one.what for one in found] == [f"{__name__}.sets_up.alive"]


def test_it_is_looked_for_where_other_versions_have_it(module: ModuleType) -> None:
    name = module.__name__
    assert missing([Surface(ADAPTERS, f"{name}.newer", "Thing", ("field",), before=(f"{name}.other", name))]) == []
    (found,) = missing([Surface(ADAPTERS, f"{name}.newer", "Thing", before=(f"{name}.older",))])
    assert found.what.startswith(f"{name}.newer.Thing (ModuleNotFoundError: ")


@pytest.mark.skipif(not HAS_VLLM, reason="needs vLLM, which is not installed: make check-vllm")
def test_the_vllm_that_is_installed_lacks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert [one.what for one in missing()] == []
    assert main() == 0
    assert '"missing": []' in capsys.readouterr().out
