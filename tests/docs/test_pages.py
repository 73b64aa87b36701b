"""What the pages say of the code is true of it: tables, hooks, settings, links."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import batchwright
from batchwright import hookspecs
from batchwright.config import EngineConfig, field_names, submodel
from batchwright.plugins import load_plugins
from docs.blocks import DOCS, PAGES, ROOT, blocks

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
SOURCES = ROOT / "framework" / "batchwright"


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    match = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,6}} |\Z)", text, re.M | re.S)
    assert match is not None, f"there is no section {heading!r}"
    return match[2]


def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    spec = importlib.util.spec_from_file_location("_tables_of_the_docs", DOCS / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_follow_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tables(monkeypatch)
    made = module.makers()
    keys = set()
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert module.filled(text, made) == text, f"{page.name} is stale: run python docs/tables.py"
        keys |= set(re.findall(r"<!-- table: ([\w. -]+) -->", text))
    assert keys == set(made)


# Hooks ----------------------------------------------------------------------------------------------------------


def signature(hook: str) -> str:
    """``def hook(…) -> …`` as in hookspecs.py."""
    spec = inspect.signature(getattr(hookspecs, hook))
    arguments = ", ".join(f"{p.name}: {p.annotation}" for p in spec.parameters.values())
    return f"def {hook}({arguments}) -> {spec.return_annotation}\n"


@pytest.mark.parametrize("hook", hookspecs.HOOKS)
def test_hooks_page_has_every_hook(hook: str) -> None:
    under = section(text_of("hooks.md"), hook)
    found = [b for b in blocks(DOCS / "hooks.md", "python") if b.text in under]
    assert found[0].text == signature(hook)
    examples = [b.text for b in found[1:] if f"def {hook}(" in b.text]
    assert examples, f"{hook} has no example"
    assert "@hookimpl" in examples[0]
    assert re.search(r"\*Since\*\s+0\.1", under)
    if hook not in hookspecs.REGISTRATIONS:
        assert "*What stops it*" in under


def test_hooks_page_lists_every_rule() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", section(text_of("hooks.md"), "Rules"), re.M))
    assert listed == set(rules_raised())


def rules_raised() -> Iterator[str]:
    """Rules of the errors that the core makes, by ``error(step, hook, RULE, ...)`` or ``PolicyError(rule=RULE)``."""
    for file in SOURCES.glob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "attr", getattr(call.func, "id", ""))
                given = [k.value for k in call.keywords if k.arg == "rule"] if name == "PolicyError" else []
                given += call.args[2:3] if name == "error" else []
                yield from (v.value for v in given if isinstance(v, ast.Constant) and isinstance(v.value, str))


def test_declarations_are_those_of_the_base_class() -> None:
    listed = re.findall(r"^\| `(\w+)(?:\(\w+\))?` \|", section(text_of("hooks.md"), "Declarations"), re.M)
    policy = batchwright.Policy
    declared = [name for name, value in vars(policy).items() if isinstance(value, bool)]
    assert listed == ["Params", *declared, "needs", "defaults"]


# Settings, policies, records ------------------------------------------------------------------------------------


def test_config_page_has_every_setting() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)` \|", section(text_of("config.md"), "Settings"), re.M))

    def is_group(name: str) -> bool:
        return submodel(EngineConfig.model_fields[name].annotation) is not None if "." not in name else False

    assert listed == {name for name in field_names(EngineConfig) if not is_group(name)}


def test_sources_are_in_the_order_that_the_page_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each source of the list wins over those before it."""
    from batchwright.cli.arms import make_arms
    from batchwright.cli.options import EngineOptions

    file, arm = tmp_path / "all.yaml", tmp_path / "arm.yaml"
    file.write_text("max_num_seqs: 3\n")
    arm.write_text("max_num_seqs: 6\n")

    def chosen(text: str, **options: object) -> int:
        return make_arms([text], EngineOptions(**options))[0].config.max_num_seqs  # type: ignore[arg-type]

    options: dict[str, object] = {}
    found = [chosen("", **options)]
    options["config"] = file
    found.append(chosen("", **options))
    monkeypatch.setenv("BATCHWRIGHT_SET_MAX_NUM_SEQS", "4")
    found.append(chosen("", **options))
    options["set_"] = ["max_num_seqs=5"]
    found.append(chosen("", **options))
    found.append(chosen(str(arm), **options))
    options["arm_set"] = ["A.max_num_seqs=7"]
    found.append(chosen(str(arm), **options))
    assert found == [256, 3, 4, 5, 6, 7]


def test_policies_page_has_every_policy() -> None:
    text = text_of("policies.md")
    plugins = load_plugins()
    own = [name for name in plugins.policies if plugins.origin["policies", name] == "policies"]
    assert len(own) >= 3
    for name in own:
        assert (DOCS / "policies" / f"{name}.md").is_file()
        assert f"[`{name}`](policies/{name}.md)" in text


def test_backends_page_has_every_backend() -> None:
    text = text_of("backends.md")
    plugins = load_plugins()
    own = [b for name, b in plugins.backends.items() if plugins.origin["backends", name] in ("sim", "torch")]
    assert len(own) == 3
    for entry in own:
        for form in entry.syntax.split(" or "):
            assert f"`{form}`" in text


def test_lab_page_has_every_field_of_the_records() -> None:
    from batchwright.lab import OfferedRecord, RequestRecord, StepRecord
    from batchwright.lab.readers.jsonl import OPTIONAL, REQUIRED
    from batchwright.lab.records import STATUSES

    assert [name for name in (*REQUIRED, *OPTIONAL) if f"`{name}`" not in text_of("workloads.md")] == []
    text = text_of("lab.md")
    names: list[str] = [*STATUSES]
    for record in (RequestRecord, StepRecord, OfferedRecord):
        names += [re.sub(r"_ns$", "_s", name) for name in record.__slots__]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_workloads_page_has_every_rule_format_and_option() -> None:
    from dataclasses import fields

    from batchwright.cli.options import OfferOptions, ShapeOptions
    from batchwright.lab.readers import azure, bailian, burstgpt, mooncake
    from batchwright.lab.row_rules import CONDITIONS, FIELDS

    text = text_of("workloads.md")
    columns = [",".join(azure.COLUMNS), ",".join(burstgpt.COLUMNS)]
    keys = [*bailian.KEYS, *mooncake.KEYS, *CONDITIONS[:-1], *FIELDS, *columns]
    assert [key for key in keys if f"`{key}`" not in text] == []
    options = [f"--{f.name.replace('_', '-')}" for f in (*fields(ShapeOptions), *fields(OfferOptions))]
    assert [option for option in options if option not in text] == []


def test_lab_page_has_the_numbers_of_the_code() -> None:
    from batchwright.lab import bootstrap, closing, family, load, varied

    text = text_of("lab.md")
    assert f"hold together with {family.LEVEL:.0%}" in text
    method = " ".join(text_of("statistics.md").split())
    assert f"`--level` ({family.LEVEL} unless given)" in method
    assert f"are drawn, {bootstrap.NUM_RESAMPLES:,} times" in method
    assert f"{bootstrap.NUM_BLOCKS}, or fewer where a block" in method
    assert f"but at least {bootstrap.FEWEST_BLOCKS}" in method
    assert f"fewer than {bootstrap.MIN_REQUESTS} requests" in method
    assert f"anew from blocks of itself, {varied.NUM_BLOCKS} of them" in method
    assert f"more than {load.GROWTH:g} times" in text
    assert f"at least {load.CONTENTION:.0%} of the time" in text
    assert f"below {closing.ALIKE:.0%} of decisions" in text


def test_replay_page_has_every_field_of_the_format() -> None:
    from batchwright.replay import batchwright_format as form

    text = section(text_of("replay.md"), "batchwright-1")
    models = (form._Run, form._Config, form._Limits, form._PrefixCache, form._Request, form._Step)
    names = [name for model in models for name in model.model_fields]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_index_lists_every_command() -> None:
    from batchwright.cli.app import app

    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback is not None}
    groups = {str(g.name) for g in app.registered_groups}
    text = section(text_of("index.md"), "Commands")
    assert [name for name in commands | groups if f"`batchwright {name}" not in text] == []


# The API --------------------------------------------------------------------------------------------------------


def test_api_pages_have_every_public_name() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^::: batchwright\.(\w+)$", text, re.M))
    errors = {n for n in batchwright.__all__ if n.endswith("Error")}  # on one page, as a tree
    plain = {"HOOKSPEC_VERSION", "__version__", "hookimpl"}
    modules = {"errors"}
    assert shown - modules == set(batchwright.__all__) - errors - plain


def test_lazy_names_agree() -> None:
    """Both lists of names in the package, and what can be imported, are the same."""
    source = inspect.getsource(batchwright)
    typed = source[source.index("if TYPE_CHECKING") : source.index("_HOME")]
    for name in batchwright.__all__:
        assert getattr(batchwright, name) is not None
    lazy = set(batchwright._HOME)
    assert lazy == set(batchwright.__all__) - {"HOOKSPEC_VERSION", "__version__"}
    assert {name for name in lazy if not re.search(rf"\b{name}\b", typed)} == set()


def test_the_site_builds(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs is not installed (make docs installs it)")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file()
    code = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py")}
    assert code == {str(path.relative_to(DOCS)) for path in DOCS.glob("exercises/0*/*.py")}  # to be downloaded


# Links ----------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """What can be linked to in a page: its headings, as GitHub and mkdocs name them, and API names."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    slugs = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
    return slugs | set(re.findall(r"^::: ([\w.]+)$", text, re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        target = match[1] or match[2]
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{target}: there is no such file"
        if anchor:
            assert anchor in anchors(file), f"{target}: there is no such heading"


def test_pages_in_docs_link_only_within_docs() -> None:
    """The site has nothing else."""
    for page in DOCS.rglob("*.md"):
        for match in LINK.finditer(page.read_text(encoding="utf-8")):
            target = match[1] or match[2]
            if not target.startswith(("http", "#")):
                assert (page.parent / target.partition("#")[0]).resolve().is_relative_to(DOCS)


def test_the_readme_is_short_and_says_what_was_not_run() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 260
    assert "not yet run on a GPU" in text


def test_pages_say_where_each_trace_is_published() -> None:
    """What the formats understand, without a path of anybody's machine."""
    page = (DOCS / "workloads.md").read_text(encoding="utf-8")
    formats = page.partition("\n## Formats")[2].partition("\n## ")[0]
    where = page.partition("\n## Where to get the traces")[2].partition("\n## ")[0]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/workloads.md#where-to-get-the-traces" in readme
    for name in ("Azure", "BurstGPT", "Mooncake", "Bailian", "ShareGPT"):
        assert f"| {name}" in formats and name in readme
        (row,) = [line for line in where.splitlines() if line.startswith((f"| {name} |", f"| {name} 2023 |"))]
        assert re.search(r"<https://[^>]+>", row), row


def test_the_picture_stands_on_its_own_ground() -> None:
    """It reads on light and on dark pages, and is described for those who do not see it."""
    picture = (DOCS / "images" / "overview.svg").read_text(encoding="utf-8")
    assert "<title" in picture and "<desc" in picture
    first = re.search(r"<rect[^>]*>", picture)
    assert first is not None and 'fill="#ffffff"' in first[0]


def test_changelog_names_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[Unreleased\]$", text, re.M)
    assert re.search(r"^### Added$", text, re.M)
