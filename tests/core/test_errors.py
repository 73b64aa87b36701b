from __future__ import annotations

import pytest

from batchwright import errors
from batchwright.errors import BatchwrightError, PolicyError, RequestError, did_you_mean


@pytest.mark.parametrize(
    ("name", "choices", "expected"),
    [
        ("stall_fre", ["stall_free", "vllm_v1"], "did you mean 'stall_free'?"),
        ("x", ["stall_free", "vllm_v1"], "choices: stall_free, vllm_v1"),
        ("x", [], "there are no choices"),
    ],
)
def test_did_you_mean(name: str, choices: list[str], expected: str) -> None:
    assert did_you_mean(name, choices) == expected


def test_the_tree_is_as_it_is_drawn() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip("│├└─ ").split(" ")[0]
        if name.endswith("Error"):
            depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
            path[depth:] = [name]
            drawn[name] = path[depth - 1] if depth else "Exception"
    classes = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, BatchwrightError)}
    assert set(drawn) == set(classes)
    for name, above in drawn.items():
        assert classes[name].__mro__[1].__name__ == above


def test_one_except_catches_all_and_builtin_ones_fit() -> None:
    assert issubclass(RequestError, ValueError)
    error = PolicyError("no", plugin="p", hook="chunking", step=3, rule="range", value=9)
    assert str(error) == "policy 'p', hook 'chunking', step 3, rule 'range': no"
