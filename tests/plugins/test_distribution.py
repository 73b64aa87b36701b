"""A distribution of somebody else, installed with pip, is selected by changing one line of YAML."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "plugins" / "batchwright-loadshed"

CONFIG = """\
policy: prefill_first
backend: sim:llama-3.1-8b@h100
max_num_seqs: 8
max_num_batched_tokens: 2048
max_num_residents: 8
"""

PROGRAM = """
import json, sys
from batchwright import Engine, RefusedRequestError, Request, SamplingParams
from batchwright.config_sources import ConfigSources

sources = ConfigSources()
sources.add_file(sys.argv[1])
with Engine(sources.build(), origins=sources.origins) as engine:
    num_refused, outputs = 0, []
    for number in range(60):
        request = Request(str(number), [number] * 1000, SamplingParams(max_tokens=3, ignore_eos=True))
        request.arrival_ns = engine.clock.now_ns()
        try:
            engine.add_request(request)
        except RefusedRequestError:
            num_refused += 1
        if number % 4 == 3:
            outputs += engine.step()
    while engine.has_unfinished():
        outputs += engine.step()
    plugin = engine.plugins.plugins.get("loadshed")
    print(json.dumps({
        "policy": engine.policy_name,
        "parameters": engine.effective.values["policy"],
        "origin": engine.effective.origins["policy"],
        "num_refused": num_refused,
        "lengths": [len(o.outputs[0].token_ids) for o in outputs if o.finished],
        "installed": plugin and plugin.distribution,
        "brings": engine.plugins.origin.get(("policies", "bounded_wait")),
        "active_hooks": plugin and list(plugin.active_hooks),
    }))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution installed in it."""
    for needed in ("pip", "hatchling"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, and installing a distribution without network needs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index"]
    _run([*command, "--quiet", "--disable-pip-version-check", "--target", str(folder), str(SOURCE)])
    return folder


def _run(command: list[str], path: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _run_config(site: Path | None, folder: Path, text: str) -> dict[str, Any]:
    config = folder / "engine.yaml"
    config.write_text(text)
    result: dict[str, Any] = json.loads(_run([sys.executable, "-c", PROGRAM, str(config)], site))
    return result


def test_one_line_of_yaml_selects_it(site: Path, tmp_path: Path) -> None:
    changed = CONFIG.replace("policy: prefill_first", "policy: bounded_wait:max_wait_s=0.05")
    assert [a for a, b in zip(CONFIG.splitlines(), changed.splitlines(), strict=True) if a != b] == [
        "policy: prefill_first"
    ]
    before, after = (_run_config(site, tmp_path, text) for text in (CONFIG, changed))
    assert (before["policy"], before["num_refused"]) == ("prefill_first", 0)
    assert before["lengths"] == [3] * 60
    assert after["policy"] == "bounded_wait" and after["parameters"]["max_wait_s"] == 0.05
    assert after["origin"] == f"file {tmp_path / 'engine.yaml'}"
    assert 0 < after["num_refused"] < 60
    assert after["lengths"] == [3] * (60 - after["num_refused"])
    for result in (before, after):  # it is there in both; only the config makes it active
        assert (result["installed"], result["brings"]) == ("batchwright-loadshed 0.1.0", "loadshed")
        assert result["active_hooks"] == []


def test_without_the_distribution_its_name_is_unknown(site: Path, tmp_path: Path) -> None:
    assert _run_config(None, tmp_path, CONFIG)["installed"] is None
    with pytest.raises(AssertionError, match="unknown policy 'bounded_wait'; choices: cheapest, dlpm"):
        _run_config(None, tmp_path, CONFIG.replace("prefill_first", "bounded_wait"))
    with pytest.raises(AssertionError, match="unknown policy 'bounded_wait'"):  # left out by --no-plugin
        _run_config(site, tmp_path, CONFIG.replace("prefill_first", "bounded_wait") + "no_plugins: [loadshed]\n")


def test_its_own_tests_pass_on_what_was_installed(site: Path) -> None:
    told = _run([sys.executable, "-m", "pytest", "--quiet", "--rootdir", str(SOURCE), str(SOURCE / "tests")], site)
    assert " passed" in told and "failed" not in told


def test_it_is_typed_and_documented(site: Path) -> None:
    assert (site / "batchwright_loadshed" / "py.typed").is_file()
    text = (SOURCE / "README.md").read_text(encoding="utf-8")
    sys.path.insert(0, str(site))
    try:
        from batchwright_loadshed import BoundedWait  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(site))
    for name, field in BoundedWait.Params.model_fields.items():
        default = {None: "null", True: "true"}.get(field.default, f"{field.default:g}" if field.default else "")
        assert f"| `{name}` | {default} |" in text, f"the README's table has not {name} with default {default}"
