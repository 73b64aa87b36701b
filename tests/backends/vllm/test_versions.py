"""Versions of vLLM that are let in, and the surfaces of it that are used; vLLM is needed only for a look at it."""

from __future__ import annotations

import ast
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from batchwright.errors import ConfigError
from batchwright_backends.vllm import versions
from batchwright_backends.vllm.honoured import HONOURED
from batchwright_backends.vllm.lacking import main, missing
from batchwright_backends.vllm.surfaces import ADAPTERS, GUEST, HOOKS, SURFACES, Surface
from batchwright_backends.vllm.versions import check_version, is_tested

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "backends" / "batchwright_backends" / "vllm").glob("*.py"))
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


def members_of(name: str) -> set[str]:
    return {m.partition("(")[0] for s in SURFACES if s.name == name and GUEST in s.adapters for m in s.members}


def test_whatever_is_imported_of_vllm_stands_in_the_table() -> None:
    known = {(surface.module, surface.name) for surface in SURFACES}
    used = {
        (node.module, name.name): file.name
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm"
        for name in node.names
        if file.name != "arguments.py"  # the doctor's, which serves nobody
    }
    assert {what: file for what, file in used.items() if what not in known} == {}, "put them into surfaces.py"
    assert len(used) > 15


def test_whatever_the_guest_reads_of_vllm_stands_in_the_table() -> None:
    """By the names under which its files hold vLLM's scheduler, its requests and its blocks."""
    holders = {
        "me": "Scheduler",
        "scheduler": "Scheduler",
        "theirs": "Request",
        "_manager": "KVCacheManager",
        "manager": "KVCacheManager",
        "block_pool": "BlockPool",
        "coordinator": "KVCacheCoordinator",
    }
    seen: dict[str, set[str]] = {}
    for file in SOURCES:
        if not file.name.startswith("guest") and file.name != "plan.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                held = node.value
                name = held.id if isinstance(held, ast.Name) else getattr(held, "attr", None)
                if name in holders:
                    seen.setdefault(holders[str(name)], set()).add(node.attr)
    assert seen.keys() == set(holders.values())
    assert {name: found - members_of(name) for name, found in seen.items() if found - members_of(name)} == {}, (
        "put them into surfaces.py"
    )


def test_hooks_of_the_table_are_known() -> None:
    assert {hook for surface in SURFACES for hook in surface.hooks} <= set(HOOKS) == set(HONOURED)
    assert all(set(surface.adapters) <= set(ADAPTERS) for surface in SURFACES)
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


@pytest.mark.skipif(not HAS_VLLM, reason="needs vLLM, which is not installed: make check-vllm")
def test_the_vllm_that_is_installed_lacks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert [one.what for one in missing()] == []
    assert main() == 0
    assert '"missing": []' in capsys.readouterr().out
