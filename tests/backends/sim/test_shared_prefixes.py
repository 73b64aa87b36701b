"""What prompts of a log share comes back as equal blocks, and nothing else does."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.errors import ConfigError
from batchwright_backends.sim.request_log import read_request_log
from batchwright_backends.sim.shared_prefixes import SharedPrefixes, find_shared_prefixes, read_shared_prefixes

prompts_of_few_tokens = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), max_size=8)


@given(prompts_of_few_tokens, st.integers(1, 4))
def test_ids_are_equal_where_prompts_are(prompts: list[list[int]], size: int) -> None:
    ids = find_shared_prefixes(prompts, size, "here").block_ids([len(p) for p in prompts])
    for i, j in combinations(range(len(prompts)), 2):
        for block in range(1, min(len(prompts[i]), len(prompts[j])) // size + 1):
            equal = prompts[i][: block * size] == prompts[j][: block * size]
            assert (bool(ids[i]) and ids[i][:block] == ids[j][:block]) == equal, (i, j, block)
    for prompt, blocks in zip(prompts, ids, strict=True):
        assert len(blocks) in (0, len(prompt) // size)


def write_log(folder: Path, lengths: list[int]) -> Path:
    """Requests that arrive in the order of ``lengths``; the last stands first in the file."""
    lines = [
        {"input_toks": n, "output_toks": 2, "queued_ts": 5.0 + i, "first_token_ts": 6.0 + i, "last_token_ts": 7.0 + i}
        for i, n in enumerate(lengths)
    ]
    path = folder / "requests.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in reversed(lines)), encoding="utf-8")
    return path


def write_prefixes(folder: Path, **changes: object) -> Path:
    path = folder / "prefixes.json"
    values = {"block_size": 16, "shared": [[2, 0, 3]], "source": "a test", **changes}
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def test_a_log_with_prefixes_becomes_a_workload_with_them(tmp_path: Path) -> None:
    log = write_log(tmp_path, [70, 33, 50])
    assert all(row.prefix_ids == () for row in read_request_log(log).workload.rows)
    write_prefixes(tmp_path)
    first, second, third = read_request_log(log).workload.rows
    assert [row.num_prompt_tokens for row in (first, second, third)] == [70, 33, 50]
    assert first.prefix_ids[:3] == third.prefix_ids and len(first.prefix_ids) == 4
    assert first.prefix_block_size == 16
    assert second.prefix_ids == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shared": [[3, 0, 1]]}, "speaks of row 3, and the log has 3, counted from 0: it belongs to another log"),
        ({"shared": [[2, 0, 4]]}, "rows 2 and 0 cannot share 4 blocks of 16 tokens: their prompts have 50 and 70"),
        ({"shared": [[2, 1, 3]]}, "rows 2 and 1 cannot share 3 blocks of 16 tokens: their prompts have 50 and 33"),
        ({"shared": [[0, 2, 1]]}, "an earlier row comes before"),
        ({"shared": [[2, 0]]}, "expected {"),
        ({"block_size": 0}, "numbers are whole"),
        ({"block_size": "16"}, "numbers are whole"),
    ],
)
def test_what_belongs_to_another_log_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    log = write_log(tmp_path, [70, 33, 50])
    write_prefixes(tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        read_request_log(log)
    assert said in str(caught.value)


def test_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prefixes.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prefixes\.json' cannot be read: JSONDecodeError"):
        read_shared_prefixes(path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_shared_prefixes(write_prefixes(tmp_path)) == SharedPrefixes(16, ((2, 0, 3),), "a test")
