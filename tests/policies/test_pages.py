"""Every registered policy has its card, its page and its tests, and the page follows the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from batchwright import Policy
from batchwright.card import card_of, cost_of, place_of
from batchwright.plugins import load_plugins
from batchwright_policies.plugin import register_policies
from policies.suite import SUITE

TESTS = Path(__file__).parents[1]
FOLDER = TESTS.parent / "docs" / "policies"
OWN = register_policies()

every = pytest.mark.parametrize("name", sorted(OWN))


def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_pages_of_policies", FOLDER / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@every
def test_each_has_a_page_that_follows_the_code(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert f"<!-- parameters: {name} -->" in text and f"<!-- card: {name} -->" in text and "**When**:" in text
    assert pages().filled(text, OWN) == text, f"{name}.md is stale: run python docs/policies/pages.py"


def test_there_is_no_page_of_another() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == set(OWN)


def test_the_readme_counts_them() -> None:
    found = re.search(r"^\| policies \| (\d+);", (TESTS.parent / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None and int(found[1]) == len(OWN)


@every
def test_each_has_a_card_whose_rules_are_in_the_code(name: str) -> None:
    found = card_of(OWN[name])
    assert found is not None and found[1] is OWN[name], "a card of its own, not one that it inherits"
    card = found[0]
    for rule, where in card.rules.items():
        place = place_of(OWN[name], where)
        assert place is not None, f"{rule}: there is no {where}"
        file, _, line = place.partition(":")
        assert file.endswith(".py") and int(line) > 1
    assert card.evidence and all(card.evidence.values())
    assert "O(" in (cost_of(OWN[name]) or ""), "its documentation says what a step costs"


def test_a_place_is_the_line_where_it_stands() -> None:
    """Of a method, an attribute, a parameter, and of what is inherited; nothing else has a place."""
    for name, where, begins in (
        ("vtc", "request_arrived", "@hookimpl"),
        ("sjf", "Params.ageing", "ageing:"),
        ("orca", "chunks", "chunks ="),
        ("sjf", "preemptive", "preemptive:"),
        ("cheapest", "measure", "@staticmethod"),
    ):
        place = place_of(OWN[name], where)
        assert place is not None
        file, _, line = place.partition(":")
        path = next(p for p in TESTS.parent.rglob(file) if p.parent.name in ("batchwright", "batchwright_policies"))
        assert path.read_text("utf-8").splitlines()[int(line) - 1].strip().startswith(begins), place
    assert place_of(OWN["vtc"], "nowhere") is None
    assert place_of(OWN["vtc"], "Params.nowhere") is None
    assert place_of(OWN["vtc"], "params.quantum") is None


def test_what_was_made_without_a_file_has_its_name_for_a_place() -> None:
    space: dict[str, type] = {}
    exec("class Typed(Policy):\n    def admission(self): ...", {"Policy": Policy, "__name__": "typed"}, space)
    assert place_of(space["Typed"], "admission") == "Typed"
    assert cost_of(space["Typed"]) is None


def test_each_registered_policy_has_its_test() -> None:
    """The suite's defining properties are checked in test_suite; the three references have replays or a file."""
    replayed = set(re.findall(r'"(\w+)", \d+, \d+\)', (TESTS / "replay" / "test_shared_cases.py").read_text("utf-8")))
    for name in set(OWN) - set(SUITE):
        claims = OWN[name].card.evidence  # type: ignore[attr-defined]
        if "decisions replayed" in claims:
            assert name in replayed
        else:
            assert "property tested" in claims and (TESTS / "policies" / f"test_{name}.py").is_file()
        if not set(OWN[name].__bases__) & set(OWN.values()):  # else it has no decisions of its own
            assert (TESTS / "cases" / f"{name}.jsonl").is_file()


def test_the_suite_is_registered() -> None:
    references = {"prefill_first", "vllm_v1", "stall_free", "observe"}
    assert {name: policy for name, policy in OWN.items() if name not in references} == SUITE
    installed = load_plugins()
    assert {n for n in installed.policies if installed.origin["policies", n] == "policies"} == set(OWN)
