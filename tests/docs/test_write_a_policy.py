"""“Write a policy in ten minutes” is done as it is written: its commands, in an empty folder, on its files."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from batchwright.cli.new_policy import names_of, write
from batchwright.testing import CHECKS, run_checks
from batchwright.testing.conformance import describe
from docs.blocks import DOCS, blocks

PAGE = DOCS / "write-a-policy.md"
TEXT = PAGE.read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """What a reader types."""
    lines: list[str] = []
    for block in blocks(PAGE, "sh"):
        if "runs these commands" in block.mark:
            lines += block.text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def files() -> dict[str, str]:
    """What a reader pastes, by its path."""
    return {b.file: b.text for b in blocks(PAGE) if b.file}


def test_the_page_says_how_many_commands_there_are() -> None:
    told = re.search(r"(\w+) commands, in an\s+empty folder", TEXT)
    assert told is not None
    page, _, _ = TEXT.partition("\n## Without a distribution")
    typed = [line for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()]
    assert told[1] == {5: "Five", 6: "Six", 7: "Seven"}[sum(not line.startswith("  ") for line in typed)]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment of its own, above the one that runs the tests: what is installed in it is seen nowhere else."""
    for needed in ("pip", "hatchling", "editables"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, and installing a distribution without network needs it")
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    below = [p for p in sys.path if p.endswith("site-packages")]
    (site / "below.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in below))
    return folder


def test_the_page_is_done_as_it_is_written(environment: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "BATCHWRIGHT_"))}
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0: without isolation
    variables = {**outside, **offline, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    said: list[str] = []
    pasted = files()
    for words in commands():
        if words[0] == "pytest":  # both files are pasted before the tests are run
            for name, text in pasted.items():
                assert (folder / name).is_file(), f"{name}: the page replaces a file that was never written"
                (folder / name).write_text(text, encoding="utf-8")
        command = [str(environment / "bin" / "python"), "-m", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables, timeout=120)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        said.append(done.stdout)
    assert re.search(r"1[89] passed", said[2]), said[2]
    assert re.search(r"shortest_first, seed 0: 17 of 17 checks passed", said[3])
    means = re.findall(r"^Mean (TTFT|E2EL) \(ms\) \*? *([\d,.]+) +([\d,.]+) .*\](.*)$", said[4], re.M)
    changes = {name: float(b.replace(",", "")) / float(a.replace(",", "")) - 1 for name, a, b, _ in means}
    assert -0.35 < changes["TTFT"] < -0.15 and -0.6 < changes["E2EL"] < -0.4  # a quarter, and half
    assert not any("better" in words for *_, words in means)  # one run is not enough
    assert "overloaded" not in said[4]
    listed = subprocess.run(
        [str(environment / "bin" / "python"), "-m", "batchwright", "policies"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=variables,
        check=True,
    )
    assert re.search(r"^shortest_first ", listed.stdout, re.M)


def test_it_takes_at_most_six_commands_and_ends_in_a_comparison_with_the_default() -> None:
    from batchwright.resolve import DEFAULT_POLICY

    found = commands()
    assert len(found) <= 6
    assert found[0][:2] == ["batchwright", "new-policy"]
    assert found[-1][:4] == ["batchwright", "ab", DEFAULT_POLICY, "shortest_first"]


def test_pytest_is_installed_before_it_is_called(tmp_path: Path) -> None:
    """Not by Batchwright; without network the test above finds it in the environment that runs it."""
    before = commands()[: [words[0] for words in commands()].index("pytest")]
    assert ["pip", "install", "--editable", "./batchwright-shortest-first[test]"] in before
    write(tmp_path, names_of("shortest-first"))
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(requirement.startswith("pytest") for requirement in project["optional-dependencies"]["test"])


def test_the_page_has_every_check() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", TEXT, re.M))
    assert listed == {name: describe(name) for name in CHECKS}


def test_what_is_said_of_a_wrong_policy_is_as_shown() -> None:
    space: dict[str, Any] = {"__name__": __name__}
    (policy,) = [text for name, text in files().items() if name.endswith("policy.py")]
    exec(policy, space)
    (wrong,) = [b.text for b in blocks(PAGE, "python") if "it is wrong" in b.mark]
    exec(f"from batchwright import hookimpl\n{textwrap.dedent(wrong)}", space)
    (outcome,) = run_checks(space["WholePrompts"], checks=["budgets"]).outcomes
    (shown,) = [" ".join(b.text.split()) for b in blocks(PAGE, "text")]

    def without_numbers(text: str) -> str:
        return re.sub(r"\d+", "N", text.partition(". Again: ")[0])

    assert without_numbers(shown) == without_numbers(str(outcome))
