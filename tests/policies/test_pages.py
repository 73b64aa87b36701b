"""Every policy of the suite has its page, and the page follows the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from policies.suite import SUITE

FOLDER = Path(__file__).parents[2] / "docs" / "policies"


def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_pages_of_policies", FOLDER / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SUITE)
def test_each_has_a_page_that_follows_the_code(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert f"<!-- parameters: {name} -->" in text and f"<!-- card: {name} -->" in text and "**When**:" in text
    assert pages().filled(text, SUITE) == text, f"{name}.md is stale: run python docs/policies/pages.py"


def test_there_is_no_page_of_another() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == set(SUITE)


def test_the_suite_is_registered() -> None:
    from batchwright_policies.plugin import register_policies

    own = {"prefill_first", "vllm_v1", "stall_free"}
    assert {name: policy for name, policy in register_policies().items() if name not in own} == SUITE
