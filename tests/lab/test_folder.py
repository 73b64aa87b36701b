"""The folder of an experiment: what is written is read back, equal; and nothing of others is lost."""

from __future__ import annotations

import json
from array import array
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError, WorkloadError
from batchwright.lab import RunRecord, load_workload, read_run, run_arm, stream_arm, with_rules
from batchwright.lab.executors import Task
from batchwright.lab.executors.installed import Installed
from batchwright.lab.files import Folder, Manifest, run_labels, task_key
from batchwright.lab.files.columns import OFFERED, REQUEST_COLUMNS, STEP_COLUMNS
from batchwright.lab.records import OfferedRecord, RequestRecord, StepRecord
from batchwright.request import SLO
from lab.hand import request, run, step

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'batchwright[parquet]'")

WORKLOAD = load_workload("synthetic:rate=20,n=40,prompt=lognormal(300,0.8),output=uniform(2,30),clients=3,seed=4")
CONFIG = EngineConfig(policy="vllm_v1", num_blocks=200, max_num_batched_tokens=512)


def some_run(**values: Any) -> RunRecord:
    """Every status, and every field that may be missing."""
    requests = [
        request(
            0,
            times_ms=[5, 6, 8],
            slo=SLO(1.0, None),
            client_id="a",
            weight=2.5,
            slo_class="chat",
            session_id="s1",
            program_id="p1",
        ),
        request(1, times_ms=[], status="refused", error="no room, \u201csorry\u201d", replica=None),
        request(
            2,
            arrival_ms=3,
            times_ms=[7],
            slo=SLO(),
            num_preemptions=2,
            num_recomputed_tokens=9,
            replica=1,
            preempted_ns=array("q", [4, 9]),
            resumed_ns=array("q", [6]),
        ),
        request(3, status="aborted", finish_reason="abort", times_ms=[1, 2], priority=-3),
        request(4),
    ]
    steps = [step(0, 0, 4, batch_size=7), step(1, 4, 9, replica=1, num_waiting=2)]
    events = [{"step": 1, "kind": "starvation", "waited_s": 1.5, "request": "r000002"}]
    return run(
        requests,
        steps,
        **{"events": events, "notes": ["uncalibrated"], "batches": array("Q", [2**64 - 1, 0]), **values},
    )


@pytest.mark.parametrize(
    "record",
    [
        some_run(),
        some_run(stopped="max_steps", predictions="an oracle", virtual_time=False, duration_ns=10**18 + 1),
        run([]),
        run([request(0)]),
    ],
    ids=["all kinds", "other fields", "empty", "no step"],
)
def test_a_run_is_read_back_equal(tmp_path: Path, record: RunRecord) -> None:
    folder = Folder(tmp_path / "new" / "out")
    folder.write_run("a", record)
    found = folder.read_run("a")
    assert found == record
    assert found.to_json() == record.to_json()


def test_a_simulated_run_is_read_back_equal_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        record = run_arm(CONFIG, WORKLOAD, leap=name == "one")
        assert record.steps
        Folder(tmp_path / name).write_run("a", record, key="k")
        assert Folder(tmp_path / name).read_run("a") == record
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert [path.name for path in files] == ["requests.parquet", "run.json", "steps.parquet"]
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()


def test_every_field_of_a_record_has_a_column() -> None:
    requests = {c.name for c in REQUEST_COLUMNS if c.name not in OFFERED}
    assert requests == {f.name for f in fields(RequestRecord)}
    assert {"request_id", *OFFERED.values()} == {f.name for f in fields(OfferedRecord)}
    assert [c.name for c in STEP_COLUMNS[:-1]] == [f.name for f in fields(StepRecord)]


@pytest.mark.parametrize(("file", "columns"), [("requests", REQUEST_COLUMNS), ("steps", STEP_COLUMNS)])
def test_a_file_tells_its_version_and_the_unit_of_each_column(tmp_path: Path, file: str, columns: Any) -> None:
    Folder(tmp_path).write_run("a", some_run())
    schema = parquet.read_schema(tmp_path / "runs" / "a" / f"{file}.parquet")
    assert schema.metadata[b"batchwright.schema_version"] == b"1"
    assert schema.metadata[b"batchwright.holds"] == file.encode()
    for column in columns:
        field = schema.field(column.name)
        assert field.metadata[b"unit"] == column.unit.encode()
        assert field.metadata[b"description"] == column.doc.encode()
        assert field.nullable == column.nullable


def test_a_file_of_before_a_column_was_added_is_read_with_its_default(tmp_path: Path, monkeypatch: Any) -> None:
    folder = Folder(tmp_path)
    record = run([request(0, times_ms=[1])])
    folder.write_run("a", record)
    path = tmp_path / "runs" / "a" / "requests.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["replica"]), path)
    with pytest.raises(WorkloadError, match="has no column replica"):
        folder.read_run("a")
    optional = tuple(replace(c, optional=c.name == "replica") for c in REQUEST_COLUMNS)
    monkeypatch.setattr("batchwright.lab.files.parquet.REQUEST_COLUMNS", optional)
    assert folder.read_run("a") == record


# What is wrong with a folder ---------------------------------------------------------------------------------------


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write_run("stall_free", some_run())
    with pytest.raises(WorkloadError, match="has no run 'stall-free'; did you mean 'stall_free'"):
        folder.read_run("stall-free")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda place: (place / "run.json").write_text("{"), "run.json is not JSON"),
        (lambda place: (place / "run.json").write_text('{"folder_version": 9}'), "folder_version 9; this Batchwright"),
        (lambda place: (place / "requests.parquet").write_text("PAR0"), "requests.parquet is no Parquet file"),
        (lambda place: (place / "requests.parquet").unlink(), "cannot read .*requests.parquet"),
        (lambda place: (place / "steps.parquet").replace(place / "requests.parquet"), "holds steps; this .* requests"),
    ],
)
def test_a_broken_run_is_named(tmp_path: Path, spoil: Any, says: str) -> None:
    folder = Folder(tmp_path)
    folder.write_run("a", some_run())
    spoil(tmp_path / "runs" / "a")
    with pytest.raises(WorkloadError, match=says):
        folder.read_run("a")


def test_a_run_of_another_record_version(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write_run("a", some_run())
    path = tmp_path / "runs" / "a" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "record_version": 99}))
    with pytest.raises(WorkloadError, match="record_version is 99"):
        folder.read_run("a")


def test_a_record_whose_parts_do_not_go_together_is_not_written(tmp_path: Path) -> None:
    record = some_run()
    with pytest.raises(WorkloadError, match="4 offers and 5 records"):
        Folder(tmp_path).write_run("a", replace(record, offered=record.offered[:-1]))
    with pytest.raises(WorkloadError, match="2 steps and 0 fingerprints"):
        Folder(tmp_path).write_run("a", replace(record, batches=array("Q")))
    assert Folder(tmp_path).labels() == []


def test_a_run_that_was_cut_off_while_it_was_written_is_not_there(tmp_path: Path, monkeypatch: Any) -> None:
    folder = Folder(tmp_path)
    folder.write_run("a", some_run(), key="k")
    monkeypatch.setattr("batchwright.lab.files.folder.write_steps", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        folder.write_run("a", some_run(), key="k")
    assert folder.labels() == []
    assert folder.key("a") is None


@pytest.mark.parametrize("label", ["", "../a", "a/b", ".a"])
def test_a_label_that_is_no_name_of_a_folder(tmp_path: Path, label: str) -> None:
    with pytest.raises(ConfigError, match="cannot name the folder of a run"):
        Folder(tmp_path).write_run(label, some_run())


def test_without_pyarrow_it_is_said_how_it_comes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(
        ConfigError, match=r"pip install 'batchwright\[parquet\]' .*, or write one JSON file with --json"
    ):
        Folder(tmp_path).write_run("a", some_run())


@pytest.mark.parametrize(("spec", "column"), [("turns=3", "session_id"), ("calls=3", "program_id")])
def test_requests_can_be_grouped_by_whose_they_are(tmp_path: Path, spec: str, column: str) -> None:
    load = with_rules(load_workload(f"synthetic:n=4,prompt=20,output=3,{spec}"), ["*: client_id=me, slo_class=chat"])
    for replicas in (1, 2):
        made = run_arm(EngineConfig(replicas=replicas), load)
        assert [getattr(r, column) for r in made.requests] == [getattr(row, column) for row in load.rows]
        Folder(tmp_path / str(replicas)).write_run("a", made)
        assert Folder(tmp_path / str(replicas)).read_run("a").dumps() == made.dumps()
        table = parquet.read_table(tmp_path / str(replicas) / "runs" / "a" / "requests.parquet")
        sums = table.group_by(["client_id", "slo_class", column]).aggregate([("num_output_tokens", "sum")]).to_pylist()
        assert [(row["client_id"], row["slo_class"], row["num_output_tokens_sum"]) for row in sums] == [
            ("me", "chat", 9)
        ] * 4
    stream_arm(EngineConfig(), load, tmp_path / "streamed.jsonl")
    assert [getattr(r, column) for r in read_run(tmp_path / "streamed.jsonl").requests] == [
        getattr(row, column) for row in load.rows
    ]


# Experiments -------------------------------------------------------------------------------------------------------


def manifest(**values: Any) -> Manifest:
    configs = values.pop("configs", {"a": CONFIG, "b": EngineConfig(policy="stall_free")})
    return Manifest.of(values.pop("design", "ab"), configs, values.pop("workload", WORKLOAD), runs=["a", "b"], **values)


def test_an_experiment_is_described_with_its_environment(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    written = manifest(command=["batchwright", "ab", "a", "b"], seeds=[1, 2], options={"max_steps": None})
    folder.write_experiment(written, distributions=["acme 1.0"])
    found = json.loads((tmp_path / "experiment.json").read_text())
    assert found["command"] == ["batchwright", "ab", "a", "b"]
    assert found["workload"]["hash"] == WORKLOAD.hash
    assert found["arms"]["b"]["policy"] == "stall_free"
    assert found["environment"]["plugins"] == ["acme 1.0"]
    assert found["environment"]["packages"]["numpy"]
    assert found["environment"]["machine"]["cores"]
    assert folder.manifest().key == written.key == found["key"]


def test_runs_are_listed_in_the_order_of_the_experiment(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write_experiment(replace(manifest(), runs=["z", "b", "a"]))
    for label in ("a", "z", "more"):
        folder.write_run(label, some_run(arm=label))
    assert folder.labels() == ["z", "a", "more"]
    assert [record.arm for record in folder.read_runs()] == ["z", "a", "more"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"design": "sweep"}, "a ab, and this is a sweep"),
        ({"configs": {"a": CONFIG, "c": CONFIG}}, "its arms are a, b, and here a, c"),
        ({"configs": {"a": CONFIG, "b": CONFIG}}, "its arm b has policy 'stall_free', and here 'vllm_v1'"),
        ({"workload": WORKLOAD.first(3)}, f"its workload is .*{WORKLOAD.hash}.*, and here "),
        ({"seeds": [0, 1]}, r"its seeds are \[0\], and here \[0, 1\]"),
        ({"options": {"max_steps": 5}}, "its options have max_steps None, and here 5"),
    ],
)
def test_a_folder_of_another_experiment_is_left_alone(tmp_path: Path, change: Any, says: str) -> None:
    folder = Folder(tmp_path)
    folder.write_experiment(replace(manifest(), seeds=[0]))
    folder.write_run("a", some_run())
    with pytest.raises(ConfigError, match=f"holds another experiment: .*{says}.*--overwrite"):
        folder.write_experiment(manifest(**{"seeds": [0], **change}))
    assert folder.labels() == ["a"]
    assert folder.manifest().key == replace(manifest(), seeds=[0]).key


def test_another_experiment_is_replaced_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write_experiment(manifest())
    folder.write_run("a", some_run())
    folder.write_summary({"x": 1})
    (tmp_path / "notes.txt").write_text("mine")
    folder.write_experiment(manifest(design="sweep"), overwrite=True)
    assert folder.labels() == []
    assert not folder.summary_path.exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_option_that_came_later_and_is_not_used_makes_no_other_experiment() -> None:
    assert manifest(details={"slo": "x"}).key == manifest(details={"slo": "x", "duration_s": None}).key
    assert manifest(details={"slo": "x"}).key != manifest(details={"slo": "x", "duration_s": 1.0}).key


def test_a_folder_that_notes_settings_as_earlier_releases_did_is_said_to(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    here = manifest()
    whole = {arm: EngineConfig.parse(values).model_dump(mode="json") for arm, values in here.arms.items()}
    folder.write_experiment(replace(here, arms=whole))
    with pytest.raises(ConfigError, match=r"the same settings, but others of them were given.*earlier releases"):
        folder.check(here)


def test_runs_of_the_same_experiment_are_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write_experiment(manifest(command=["one"]))
    folder.write_run("a", some_run(), key="k")
    folder.write_experiment(manifest(command=["two"]))
    assert folder.key("a") == "k"


def test_a_folder_of_other_files_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="no experiment of Batchwright's"):
            Folder(tmp_path).write_experiment(manifest(), overwrite=overwrite)
    with pytest.raises(ConfigError, match="is a file"):
        Folder(tmp_path / "thesis.tex").check(manifest())


# Labels and keys ---------------------------------------------------------------------------------------------------


def test_labels_are_readable_and_unique() -> None:
    parts = [("stall_free:chunk_size=512", "seed 3"), ("stall_free/chunk_size=512", "seed 3"), ("A",), ("a",), ("..",)]
    assert run_labels(parts) == [
        "stall_free_chunk_size=512-seed_3",
        "stall_free_chunk_size=512-seed_3~2",
        "A",
        "a~2",
        "run",
    ]


def task(**values: Any) -> Task:
    return Task(**{"arm": "a", "config": CONFIG, "workload": WORKLOAD, "seed": 1, **values})


def test_unset_is_another_experiment_than_set_to_the_default(tmp_path: Path) -> None:
    """vllm_v1 has a limit of residents where none is given, and keeps to none where that is said."""
    unset, said = EngineConfig(policy="vllm_v1"), EngineConfig(policy="vllm_v1", max_num_residents=None)
    assert unset == said and manifest(configs={"a": unset}).key != manifest(configs={"a": said}).key
    assert task_key(task(config=unset)) != task_key(task(config=said))
    inner = EngineConfig.parse({"prefix_cache": {"visible": "computed"}}), EngineConfig.parse({"prefix_cache": {}})
    assert len({manifest(configs={"a": config}).key for config in inner}) == 2
    Folder(tmp_path).write_experiment(manifest(configs={"a": unset}))
    with pytest.raises(ConfigError, match="its arms have the same settings, but others of them were given"):
        Folder(tmp_path).write_experiment(manifest(configs={"a": said}))
    assert json.loads((tmp_path / "experiment.json").read_text())["arms"] == {"a": {"policy": "vllm_v1"}}


def test_a_key_is_of_all_that_decides() -> None:
    base = task_key(task())
    assert base == task_key(task(), Installed())
    assert base == task_key(task(options={"progress": print}))
    others = [
        task(arm="b"),
        task(config=CONFIG.model_copy(update={"max_num_seqs": 3})),
        task(config=CONFIG.model_copy(update={"policy": "stall_free"})),
        task(workload=WORKLOAD.first(5)),
        task(seed=2),
        task(options={"max_steps": 5}),
    ]
    assert len({base, *map(task_key, others)}) == len(others) + 1


def test_a_policy_that_was_edited_has_another_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    text = "from batchwright import Policy\n\n\nclass Mine(Policy):\n    '''Of mine.'''\n"
    path.write_text(text)
    config = CONFIG.model_copy(update={"policy": f"{path}:Mine"})
    before = task_key(task(config=config))
    assert before == task_key(task(config=config))
    path.write_text(text + "    stationary = False\n")
    assert before != task_key(task(config=config))
