"""``batchwright report``, and the page and figures of ``ab`` and ``run``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import SMALL, Cli

ARMS = ("prefill_first", "stall_free:chunk_size=64")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that ab wrote."""
    from typer.testing import CliRunner

    from batchwright.cli.app import app

    folder: Path = tmp_path_factory.mktemp("saved") / "monday"
    result = CliRunner().invoke(app, ["ab", *ARMS, "--workload", SMALL, "--out", str(folder), "--quiet"])
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture(autouse=True)
def quick_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fonts are cut for every PDF, which takes a second each; tests of figures look at real ones."""
    monkeypatch.setattr("batchwright.lab.figures.plot.Plot.write_pdf", lambda plot, file: file.write(b"%PDF"))


@pytest.fixture
def monday(saved: Path) -> Path:
    """A copy of it that may be changed."""
    return Path(shutil.copytree(saved, Path.cwd() / "monday")).relative_to(Path.cwd())


def test_ab_writes_the_page_with_its_own_command(cli: Cli, saved: Path) -> None:
    page = (saved / "report.html").read_text(encoding="utf-8")
    assert "stall_free against prefill_first" in page
    command = json.loads((saved / "experiment.json").read_text())["command"]
    assert " ".join(command[1:4]) in page.replace("&#39;", "'")


def test_ab_says_what_it_wrote(cli: Cli) -> None:
    answer = cli("ab", *ARMS, "--workload", SMALL, "--out", "out")
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == "wrote out/report.html"


def test_the_page_is_made_anew_from_the_records(cli: Cli, monday: Path) -> None:
    before = (monday / "report.html").read_text(encoding="utf-8")
    (monday / "report.html").unlink()
    answer = cli("report", monday)
    assert answer.code == 0, answer.err
    assert "Mean TTFT (ms)" in answer.out
    assert answer.out.splitlines()[-1] == "wrote monday/report.html"
    after = (monday / "report.html").read_text(encoding="utf-8")
    assert after.replace("<p>monday:</p>\n", "").count("<svg") == before.count("<svg")
    assert cli("report", monday, "--quiet") == (cli("report", monday, "--quiet"))
    assert (monday / "report.html").read_text(encoding="utf-8") == after


def test_figures_are_files(cli: Cli, monday: Path) -> None:
    answer = cli("report", monday, "--figures", "paper/figures", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    names = {path.name for path in Path("paper/figures").iterdir()}
    assert {"ttft_cdf.pdf", "ttft_cdf.csv", "timeline.pdf", "requests.csv", "table.tex"} <= names


def test_run_has_figures_too(cli: Cli) -> None:
    assert cli("run", "vllm_v1", "--workload", SMALL, "--figures", "figures", "--quiet").code == 0
    assert Path("figures/ttft_cdf.pdf").is_file()
    assert not Path("report.html").exists()


def test_folders_are_compared_and_an_arm_of_both_counts_once(cli: Cli, monday: Path) -> None:
    assert cli("ab", "prefill_first", "vllm_v1", "--workload", SMALL, "--out", "tuesday", "--quiet").code == 0
    answer = cli("report", monday, "tuesday", "--to", "both.html")
    assert answer.code == 0, answer.err
    assert "prefill_first is in several folders with the same records, and counts once" in answer.out
    page = Path("both.html").read_text(encoding="utf-8")
    assert "stall_free, vllm_v1 against prefill_first" in page
    for folder in ("monday", "tuesday"):
        assert f"<p>{folder}" in page


def test_arms_of_one_name_that_differ_are_told_apart_by_their_folder(cli: Cli, monday: Path) -> None:
    options = ("--workload", SMALL, "--set", "max_num_seqs=2", "--out", "tuesday", "--quiet")
    assert cli("run", "prefill_first", *options).code == 0
    answer = cli("report", monday, "tuesday", "--to", "both.html", "--quiet")
    assert answer.code == 0, answer.err
    assert "prefill_first (tuesday)" in Path("both.html").read_text(encoding="utf-8")


def test_several_folders_write_no_page_unless_told_where(cli: Cli, monday: Path) -> None:
    (monday / "report.html").unlink()
    assert cli("report", monday, monday).code == 0
    assert not (monday / "report.html").exists()
    assert not Path("report.html").exists()


# What bad input gets ---------------------------------------------------------------------------------------------


def test_other_requests_are_refused_and_the_folders_named(cli: Cli, monday: Path) -> None:
    other = SMALL.replace("seed=3", "seed=4")
    assert cli("run", "vllm_v1", "--workload", other, "--out", "tuesday", "--quiet").code == 0
    answer = cli("report", monday, "tuesday", "--to", "both.html")
    assert answer.code == 1
    assert "cannot be compared" in answer.error
    assert "vllm_v1 is from tuesday" in answer.error
    assert not Path("both.html").exists()


def test_a_folder_of_something_else(cli: Cli, monday: Path) -> None:
    Path("empty").mkdir()
    answer = cli("report", "empty")
    assert answer.code == 2
    assert "empty is no folder of results: it has no experiment.json" in answer.error
    shutil.rmtree(monday / "runs")
    answer = cli("report", monday)
    assert answer.code == 2
    assert "monday holds no run" in answer.error


def test_a_sweep_is_not_taken_for_arms(cli: Cli, monday: Path) -> None:
    path = monday / "experiment.json"
    text = path.read_text()
    path.write_text(text.replace('"design": "ab"', '"design": "census"'))
    answer = cli("report", monday)
    assert answer.code == 1
    assert "monday holds a census" in answer.error
    path.write_text(text.replace('"design": "ab"', '"design": "tune"'))
    answer = cli("report", monday)
    assert answer.code == 2
    assert "monday/summary.json is of an older release, or of another experiment" in answer.error


def test_files_of_others_are_not_written_over(cli: Cli, monday: Path) -> None:
    Path("thesis.html").write_text("<p>three years")
    for path, says in (("thesis.html", "is no report of Batchwright's"), ("no/such/x.html", "there is no folder")):
        answer = cli("report", monday, "--to", path)
        assert answer.code == 2
        assert says in answer.error
    assert Path("thesis.html").read_text() == "<p>three years"


@pytest.mark.parametrize("command", [("report", "monday"), ("ab", *ARMS, "--workload", SMALL)])
def test_figures_cannot_go_into_a_file(cli: Cli, monday: Path, command: tuple[str, ...]) -> None:
    Path("file").write_text("")
    answer = cli(*command, "--figures", "file")
    assert answer.code == 2
    assert answer.error == "--figures file: it is a file; name a folder"


def test_without_matplotlib_the_runs_are_kept_and_the_page_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.lab.html.find_spec", lambda name: None if name == "matplotlib" else object())
    answer = cli("ab", *ARMS, "--workload", SMALL, "--out", "out")
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == (
        "out/report.html is not written: matplotlib is missing: pip install 'batchwright[report]'"
    )
    assert Path("out/summary.json").is_file()
    assert "pip install 'batchwright[report]'" in cli("ab", *ARMS, "--figures", "x").error
    assert "pip install 'batchwright[report]'" in cli("report", "out").error
