"""A policy from a single file: ``path/to/file.py:Class``."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from batchwright import ConfigError, PluginError
from batchwright.resolve import parse_arm, resolve_policy
from toolbox import expected_of, make_engine, make_request, play

POLICY = '''
from __future__ import annotations

from batchwright import Params, Policy, hookimpl
from pydantic import Field


class LongestParams(Params):
    most: int = Field(default=4, ge=1)


class Longest(Policy):
    """Residents, then the longest prompts."""

    Params = LongestParams

    @hookimpl
    def admission(self, step):
        yield step.running
        for request in sorted(step.waiting, key=lambda r: -r.num_tokens)[: self.params.most]:
            yield request
            if not request.num_scheduled:
                break


class NotAPolicy:
    pass
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "longest.py"
    path.write_text(POLICY)
    return path


@pytest.mark.parametrize("as_mapping", [False, True])
def test_it_runs(file: Path, as_mapping: bool) -> None:
    spec: Any = {"use": f"{file}:Longest", "most": 2} if as_mapping else f"{file}:Longest:most=2"
    engine, tape = make_engine(spec)
    play(engine, [make_request(str(i), 4 + i, 3) for i in range(5)])
    assert [i for i, _ in tape.steps[0].batch] == ["4", "3"]
    assert engine.policy_name == "Longest"
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


def test_it_runs_in_a_slot(file: Path) -> None:
    engine, tape = make_engine({"admission": f"{file}:Longest", "chunking": "stall_free:chunk_size=8"})
    play(engine, [make_request(str(i), 4 + i, 3) for i in range(5)])
    assert tape.steps[0].batch == [("4", 8)]
    assert len(tape.reasons) == 5


def test_the_same_file_twice_is_two_policies(file: Path) -> None:
    first, second = (resolve_policy(f"{file}:Longest:most={n}") for n in (1, 2))
    assert first.slots["admission"].params.most == 1 and second.slots["admission"].params.most == 2


def test_how_arms_are_written() -> None:
    assert parse_arm("a/b.py:Cls") == {"use": "a/b.py:Cls"}
    assert parse_arm("a/b.py:Cls:x=1,y=two") == {"use": "a/b.py:Cls", "x": 1, "y": "two"}
    assert parse_arm("name:x=null,y=[1") == {"use": "name", "x": None, "y": "[1"}
    assert parse_arm("name") == parse_arm("name:") == {"use": "name"}


def _write(folder: Path, text: str) -> Path:
    path = folder / "bad.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_files_that_cannot_be(tmp_path: Path, file: Path) -> None:
    broken = _write(tmp_path, "import numpie\n")
    for spec, message in [
        (f"{tmp_path}/none.py:Longest", "there is no file "),
        (f"{file}:Longst", r"has no policy class 'Longst'; did you mean 'Longest'\?"),
        (f"{file}:NotAPolicy", "has no policy class 'NotAPolicy'; "),
        (f"{file}:", "has no policy class ''"),
        (f"{file}", "has no policy class ''"),
        (f"{broken}:Longest", "cannot be imported: ModuleNotFoundError: No module named 'numpie'"),
        (f"{file}:Longest:mots=2", "unknown parameter 'mots'; did you mean 'most'"),
        (f"{file}:Longest:most=0", "parameter 'most' is 0"),
    ]:
        with pytest.raises(ConfigError, match=message):
            resolve_policy(spec)


def test_a_file_that_is_not_of_python(tmp_path: Path) -> None:
    (tmp_path / "odd.py:notes.txt").write_text("words")
    with pytest.raises(ConfigError, match=r"notes\.txt is not a Python file"):
        resolve_policy({"use": f"{tmp_path}/odd.py:notes.txt:Cls"})


def test_a_misspelt_hook_in_a_file(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        """
        from batchwright import Policy, hookimpl

        class Mine(Policy):
            @hookimpl
            def preemtion(self, step, request):
                return request
        """,
    )
    with pytest.raises(PluginError, match="hook 'preemtion': there is no such hook; did you mean 'preemption'"):
        resolve_policy(f"{path}:Mine")
