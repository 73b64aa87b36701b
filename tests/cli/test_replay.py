"""``batchwright replay``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import TIGHT, Cli

CASES = Path(__file__).parents[3] / "shared" / "cases"


@pytest.fixture
def recording(cli: Cli) -> dict[str, object]:
    """A recording in ``d.jsonl``, as data."""
    args = ["--workload", TIGHT, "--set", "num_blocks=40", "--set", "max_num_batched_tokens=256"]
    assert cli("run", "vllm_v1", *args, "--record", "d.jsonl").code == 0
    data: dict[str, object] = json.loads(Path("d.jsonl").read_text())
    return data


@pytest.mark.parametrize(("field", "step"), [("free_blocks", 9), ("scheduled", 0), ("waiting", 3), ("finished", -1)])
def test_one_changed_number_is_found_at_its_step(cli: Cli, recording: dict, field: str, step: int) -> None:
    where = recording["steps"][step]
    if field == "free_blocks":
        where[field] += 1
    elif field == "scheduled":
        where[field][0][1] -= 1
    else:
        where[field] = where[field][1:]
    Path("d.jsonl").write_text(json.dumps(recording))
    answer = cli("replay", "d.jsonl")
    assert answer.code == 1
    place = step if step >= 0 else len(recording["steps"]) - 1
    assert f"step {place}: {field} differs" in answer.out
    assert [line.split()[1] for line in answer.out.splitlines() if line.startswith("* ")] == [field]
    assert all(len(line) <= 80 for line in answer.out.splitlines())


def test_another_policy_decides_otherwise(cli: Cli, recording: dict) -> None:
    answer = cli("replay", "d.jsonl", "--policy", "prefill_first")
    assert answer.code == 1
    assert "1 of 1 cases differ" in answer.out
    quiet = cli("replay", "d.jsonl", "--policy", "prefill_first", "--quiet")
    assert (quiet.code, quiet.out) == (1, "")


@pytest.mark.parametrize(
    ("cases", "policy"), [("prefill_first", "prefill_first"), ("vllm_v1", "vllm_v1"), ("vllm_v1_prefix", "vllm_v1")]
)
def test_recorded_decisions_of_the_references(cli: Cli, cases: str, policy: str) -> None:
    file = CASES / f"{cases}.jsonl.gz"
    if not file.exists():
        pytest.skip(f"the recorded cases are not here: {file}")
    answer = cli("replay", file, "--policy", policy)
    assert answer.code == 0, answer.out
    assert "cases agree" in answer.out
    assert cli("replay", file).error.count("--policy") == 1  # these formats do not name their policy


def test_unknown_policies_and_broken_files(cli: Cli, recording: dict) -> None:
    answer = cli("replay", "d.jsonl", "--policy", "vllmv1")
    assert answer.code == 2
    assert "did you mean 'vllm_v1'?" in answer.error
    assert cli("replay", "absent.jsonl").code == 2
    assert "absent.jsonl" in cli("replay", "absent.jsonl").error
    Path("bad.jsonl").write_text(Path("d.jsonl").read_text().strip() + "\n{no json\n")
    assert "bad.jsonl, line 2" in cli("replay", "bad.jsonl").error
    Path("empty.jsonl").write_text("")
    assert "no cases" in cli("replay", "empty.jsonl").error


def test_missing_arguments(cli: Cli) -> None:
    answer = cli("replay")
    assert answer.code == 2
    assert answer.error == "Missing argument 'CASES' (see batchwright replay --help)"
