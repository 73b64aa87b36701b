"""The commands of the pages: those of ``batchwright`` are run, on small files under the names that the page gives."""

from __future__ import annotations

import io
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from docs.blocks import PAGES, ROOT, all_blocks, blocks

PROMPT = re.compile(r"^\$ ")

SAMPLES = {
    "AzureLLMInferenceTrace_conv.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:15:{46 + i}.6805900,{300 + 90 * i},{20 + i}\n" for i in range(8)),
    "mooncake_conversation_trace.jsonl": "".join(
        json.dumps({"timestamp": 200 * i, "input_length": 1200, "output_length": 9, "hash_ids": [0, i % 2, 9 + i]})
        + "\n"
        for i in range(8)
    ),
}
SAMPLES["trace.csv"] = SAMPLES["AzureLLMInferenceTrace_conv.csv"]


def commands(page: Path) -> list[list[str]]:
    """The commands of a page's shell blocks, split; continued lines joined."""
    found = []
    for block in blocks(page, "sh", "console"):
        if block.is_run:
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(PROMPT.sub("", line), comments=True)
                if words:
                    found.append(words)
    return found


def exit_code(page: Path, words: list[str]) -> int:
    """What a command is to answer: 0, or what the comment behind it says."""
    for block in blocks(page, "sh", "console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            said = re.search(r"# exit code (\d+)", line)
            if said and shlex.split(PROMPT.sub("", line), comments=True) == words:
                return int(said[1])
    return 0


def files_of(page: Path) -> dict[str, str]:
    """Files that a page shows; a YAML block is the file that the text before it names."""
    shown = {b.file: b.text for b in blocks(page) if b.file}
    text = page.read_text(encoding="utf-8")
    return {**shown, **dict(re.findall(r"\(`(\w+\.yaml)`\):\n\n```yaml\n(.*?)```", text, re.S))}


WITH_COMMANDS = [page for page in PAGES if any(words[0] == "batchwright" for words in commands(page))]


def call(words: list[str]) -> int:
    """Run a command line of ``batchwright`` in this process; returns its exit code."""
    from batchwright.cli.app import app

    with pytest.raises(SystemExit) as ended:
        app(words[1:], prog_name="batchwright")
    return int(ended.value.code or 0)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())  # play reads it
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for name, text in {**SAMPLES, **files_of(page)}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for words in commands(page):
        if words[0] != "batchwright" or "cpu:" in " ".join(words):
            continue
        code = call(words)
        captured = capsys.readouterr()
        assert code == exit_code(page, words), f"{shlex.join(words)}: {captured.err}"
        if words[1] in ("ab", "run"):
            assert (
                "intervals" if "--agree" in words else "max_tokens" if "--metrics" in words else "Finished"
            ) in captured.out


def parse(words: list[str]) -> Any:
    """The parsed command line of a command, without running it."""
    import typer

    from batchwright.cli.app import app

    root: Any = typer.main.get_command(app)
    context = root.make_context("batchwright", words[1:])
    name, command, rest = root.resolve_command(context, [*context._protected_args, *context.args])
    return command.make_context(name, rest, parent=context)


def test_commands_on_a_real_model_are_parsed() -> None:
    found = [w for p in PAGES for w in commands(p) if w[0] == "batchwright" and "cpu:" in " ".join(w)]
    for words in found:
        assert parse(words).params


def test_other_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for page in PAGES:
        for words in commands(page):
            match words:
                case ["batchwright", *_]:
                    pass
                case ["make", target, *_]:
                    assert target in targets
                case ["pip", "install", what]:
                    assert set(re.findall(r"\[(\w+)\]", what)) <= set(extras)
                case ["python", script, *_]:
                    assert (ROOT / script).is_file()
                case _:
                    pytest.fail(f"{page.name} shows a command that no test knows: {shlex.join(words)}")


def test_inline_make_targets_and_extras_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
        assert set(re.findall(r"\[(\w+)\]'`", text)) <= set(extras)


@pytest.mark.parametrize("block", [b for b in all_blocks("yaml", "toml") if b.is_run], ids=lambda b: b.name)
def test_configs_parse(block: Any) -> None:
    import yaml

    from batchwright.config import EngineConfig
    from batchwright.effective import effective_settings
    from batchwright.resolve import resolve_policy

    values = yaml.safe_load(block.text) if block.kind == "yaml" else tomllib.loads(block.text)
    config = EngineConfig.parse(values)
    effective_settings(config, resolve_policy(config.policy))


def test_the_machine_file_of_the_backends_page_is_one(tmp_path: Path) -> None:
    from batchwright_backends.sim.target import parse_target

    (block,) = [b for b in blocks(ROOT / "docs" / "backends.md", "yaml") if "sim:FILE" in b.mark]
    file = tmp_path / "machine.yaml"
    file.write_text(block.text, encoding="utf-8")
    machine = parse_target(str(file))
    assert machine.gpu.memory_bytes == 68_000_000_000
    assert machine.options == {"gpu_memory_utilization": 0.85}


def test_the_readmes_trace_is_read(tmp_path: Path) -> None:
    from batchwright.lab import load_workload

    file = tmp_path / "trace.jsonl"
    file.write_text(files_of(ROOT / "README.md")["trace.jsonl"], encoding="utf-8")
    rows = load_workload(file).rows
    assert [row.num_prompt_tokens for row in rows] == [900, 40, 2000]
    assert rows[1].max_tokens == 512 and rows[2].slo is not None


def test_the_policy_file_of_the_readme_ages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameter does what its description says: without ageing the short one always goes first."""
    from batchwright import Limits, Request, SamplingParams, Scheduler

    (tmp_path / "shortest_first.py").write_text(files_of(ROOT / "README.md")["shortest_first.py"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for ageing, first in ((0, "short"), (100, "long")):
        scheduler = Scheduler(
            f"shortest_first.py:ShortestFirst:ageing={ageing}",
            num_blocks=64,
            block_size=4,
            limits=Limits(max_num_residents=1),
        )
        scheduler.add(Request("long", [1] * 40, SamplingParams(max_tokens=1)))
        scheduler.add(Request("short", [1] * 4, SamplingParams(max_tokens=1), arrival_ns=1_000_000_000))
        assert scheduler.schedule(now=1_000_000_000).request_ids == [first]


def test_the_demo_shows_what_the_readme_says(tmp_path: Path) -> None:
    """Of the simulated half: rows and shares as shown, within what another numpy may round."""
    command = next(
        words
        for words in map(shlex.split, (ROOT / "docs" / "demo.sh").read_text().replace("\\\n", " ").splitlines())
        if "sim:llama-3.1-8b@h100" in words
    )
    arms = [words.replace("$A", "prefill_first") for words in command[2:4]]
    out = tmp_path / "demo.json"
    assert call(["batchwright", "ab", *arms, *command[4:], "--quiet", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    (shown,) = [b.text for b in blocks(ROOT / "README.md", "text") if b.mark == "demo"]
    rows = re.findall(r"^(\w+) (\w+) \(ms\)[ *]+([\d,.]+) +([\d,.]+) .* (better|worse)$", shown, re.M)
    assert len(rows) >= 3
    for kind, latency, *values, verdict in rows:
        name = f"{kind.lower()}_{latency.lower()}_ms"
        for value, arm in zip(values, found["summary"].values(), strict=True):
            assert float(value.replace(",", "")) == pytest.approx(arm[name], rel=0.05)
        assert verdict == next(v["verdict"] for v in found["verdicts"] if v["metric"] == name)
    (differ,) = re.findall(r"decisions differ in ([\d.]+)% of steps", shown)
    assert float(differ) / 100 == pytest.approx(max(found["decisions_differ"].values()), abs=0.05)
