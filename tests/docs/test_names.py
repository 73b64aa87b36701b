"""Names of modules, classes and attributes that pages give are names of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchwright import hookspecs
from batchwright.plugins import load_plugins
from docs.blocks import DOCS, ROOT

CODE = ("framework", "policies", "backends")
SOURCES = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
FIELD = re.compile(r"`([^`]+)`")


def names_in(node: ast.AST) -> set[str]:
    """Functions, attributes and fields that a class or module defines, its methods' ``self`` included."""
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(inner.name)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            found.add(inner.id)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found.add(inner.attr)
    return found


def defined() -> dict[str, set[str]]:
    """Class (and "" for everything) to the names that its source defines."""
    found: dict[str, set[str]] = {"": set()}
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[""] |= {path.stem, *names_in(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(names_in(node))
    return found


DEFINED = defined()


def here() -> Iterator[str]:
    """Names in the column "here" of the map from nano-vLLM."""
    for line in (DOCS / "from-nano-vllm.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| there |"):
            yield from FIELD.findall(line.split(" | ")[1])


@pytest.mark.parametrize("name", sorted(set(here())))
def test_the_map_from_nano_vllm_leads_to_names_that_there_are(name: str) -> None:
    if name.endswith(":"):
        assert name[:-1] in load_plugins().backends
        return
    owner, _, attribute = name.removeprefix("yield ").rpartition(".")
    assert attribute in DEFINED[owner if owner in DEFINED else ""], f"{owner or name}: there is no {attribute}"


def modules() -> Iterator[str]:
    """Modules that "a request's life" names: in brackets behind a step, and in the list of what to read."""
    text = (DOCS / "life.md").read_text(encoding="utf-8")
    for group in re.findall(r"\[((?:`[\w.]+`[,;]? ?)+)\](?!\()", text):
        yield from FIELD.findall(group)
    table = text.partition("## Where to read on in the code")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| (.*?) \|", table, re.M):
        yield from FIELD.findall(line)


@pytest.mark.parametrize("name", sorted(set(modules())))
def test_a_requests_life_names_modules_that_there_are(name: str) -> None:
    path = Path(*name.split("."))
    places = [ROOT / "framework" / "batchwright" / path, *(ROOT / folder / path for folder in CODE)]
    assert any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def test_the_life_of_a_request_has_eight_steps_and_every_hook() -> None:
    text = (DOCS / "life.md").read_text(encoding="utf-8")
    steps = re.findall(r"^(\d)\. \*\*", text, re.M)
    assert steps == list("12345678")
    drawn = text.partition("## When each hook fires")[2].partition("\n## ")[0]
    for hook in hookspecs.DECISIONS:
        assert re.search(rf"\bD {hook}\b", drawn), hook
    for hook in hookspecs.OBSERVERS:
        assert re.search(rf"\bo {hook}\b", drawn) or f"`{hook}(" in drawn, hook
