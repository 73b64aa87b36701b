"""``batchwright config``: what is in force, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from .conftest import Cli

Write = Callable[[str, str], Path]


def shown(cli: Cli, *args: object) -> dict[str, tuple[str, str]]:
    """Setting to its value and source, as ``config show`` prints them in a wide table."""
    answer = cli("config", "show", *args)
    assert answer.code == 0, answer.err
    header, *rows = answer.out.splitlines()
    value, origin = header.index("value"), header.index("from")
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for row in rows:
        name = row[:value].strip() or name
        before = found.get(name, ("", ""))
        here = (row[value:origin].strip(), row[origin:].strip())
        found[name] = (f"{before[0]} {here[0]}".strip(), f"{before[1]} {here[1]}".strip())
    return found


def test_precedence_from_the_defaults_to_the_arm(cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source wins over all before it, and is named."""
    name = "max_num_residents"
    assert shown(cli)[name] == ("null", "default")
    args: list[object] = ["vllm_v1"]
    assert shown(cli, *args)[name] == ("256", "policy vllm_v1")
    file = write("base.yaml", "max_num_residents: 10\n")
    args += ["--config", file]
    value, origin = shown(cli, *args)[name]
    assert value == "10" and origin.startswith("file ")
    monkeypatch.setenv("BATCHWRIGHT_SET_MAX_NUM_RESIDENTS", "11")
    assert shown(cli, *args)[name][0] == "11"
    assert "environment" in shown(cli, *args)[name][1]
    args += ["--set", "max_num_residents=12"]
    assert shown(cli, *args)[name] == ("12", "--set max_num_residents")
    write("arm.toml", 'policy = "vllm_v1"\nmax_num_residents = 13\n')
    args[0] = "arm.toml"
    assert shown(cli, *args)[name] == ("13", "file arm.toml")
    args += ["--arm-set", "A.max_num_residents=14"]
    assert shown(cli, *args)[name] == ("14", "--arm-set A max_num_residents")


def test_what_a_policy_wants_depends_on_the_limits(cli: Cli) -> None:
    assert shown(cli, "vllm_v1", "--set", "max_num_seqs=9")["max_num_residents"] == ("9", "policy vllm_v1")
    assert shown(cli, "vllm_v1")["prefix_cache.visible"] == ("scheduled", "policy vllm_v1")


def test_options_are_sources_too(cli: Cli) -> None:
    found = shown(cli, "--backend", "sim:llama-3.1-8b@a100", "--seed", 4)
    assert found["backend"] == ("sim:llama-3.1-8b@a100", "--backend")
    assert found["seed"] == ("4", "--seed")


def test_parameters_of_the_policy_and_where_they_come_from(cli: Cli, write: Write) -> None:
    found = shown(cli, "stall_free:chunk_size=48")["policy"]
    assert found == ("use: stall_free, chunk_size: 48", "arm stall_free:chunk_size=48")
    default = shown(cli, "--set", "policy.decode_interleave=3")["policy"]
    assert "use: prefill_first" in default[0] and "decode_interleave: 3" in default[0]
    file = write("c.yaml", "policy: stall_free:chunk_size=48\n")
    assert "chunk_size: 24" in shown(cli, "--config", file, "--set", "policy.chunk_size=24")["policy"][0]
    assert "chunk_size: 12" in shown(cli, "stall_free", "--arm-set", "A.policy.chunk_size=12")["policy"][0]


def test_a_policy_for_each_decision(cli: Cli, write: Write) -> None:
    file = write("c.yaml", "policy: {admission: vllm_v1, chunking: {use: stall_free, chunk_size: 99}}\n")
    value = shown(cli, file)["policy"][0]
    assert "admission: use: vllm_v1" in value and "chunk_size: 99" in value


def test_what_the_backend_chooses(cli: Cli) -> None:
    for name in ("max_model_len", "block_size", "num_blocks"):
        assert shown(cli)[name] == ("", "chosen by the backend")
    made = shown(cli, "--with-backend")
    assert made["block_size"] == ("16", "backend sim:llama-3.1-8b@h100")
    assert made["max_model_len"] == ("131072", "backend sim:llama-3.1-8b@h100")
    assert int(made["num_blocks"][0]) > 10_000
    assert shown(cli, "--set", "num_blocks=77")["num_blocks"] == ("77", "--set num_blocks")


def test_it_fits_80_columns(cli: Cli) -> None:
    assert all(len(line) <= 80 for line in cli("config", "show", "vllm_v1").out.splitlines())


def test_yaml_is_a_config_file_again(cli: Cli) -> None:
    args = ["stall_free:chunk_size=48", "--set", "max_num_seqs=9", "--set", "prefix_cache.enabled=false"]
    first = cli("config", "show", *args, "--yaml")
    values = yaml.safe_load(first.out)
    assert values["policy"] == {"use": "stall_free", "chunk_size": 48}
    assert values["prefix_cache"]["enabled"] is False
    assert "num_blocks" not in values
    Path("again.yaml").write_text(first.out)
    assert cli("config", "show", "again.yaml", "--yaml").out == first.out


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("max_num_sequences: 4\n", "unknown key 'max_num_sequences'; did you mean 'max_num_seqs'"),
        ("prefix_cache: {visibel: computed}\n", "did you mean 'prefix_cache.visible'"),
        ("max_num_seqs: 0\n", "max_num_seqs is 0"),
        ("max_num_seqs: many\n", "max_num_seqs is 'many'"),
        ("[1, 2]\n", "must hold a mapping"),
        ("a: [\n", "cannot be read"),
    ],
)
@pytest.mark.parametrize("as_arm", [False, True])
def test_a_wrong_config_file(cli: Cli, write: Write, file: str, words: str, as_arm: bool) -> None:
    path = write("wrong.yaml", file)
    answer = cli("config", "show", *([path] if as_arm else ["--config", path]))
    assert answer.code == 2
    assert words in answer.error
    assert "wrong.yaml" in answer.error


def test_a_config_file_that_is_not_there(cli: Cli) -> None:
    for args in (["--config", "absent.yaml"], ["absent.yaml"]):
        answer = cli("config", "show", *args)
        assert answer.code == 2
        assert "absent.yaml" in answer.error and "no such file" in answer.error


def test_unknown_settings_get_the_nearest_name(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean 'max_num_seqs'" in cli("config", "show", "--set", "max_num_seq=4").error
    assert "did you mean 'max_num_seqs'" in cli("config", "show", "--arm-set", "A.max_num_seq=4").error
    assert "write it as field=value" in cli("config", "show", "--set", "max_num_seqs").error
    assert "no arm 'Z'" in cli("config", "show", "--arm-set", "Z.max_num_seqs=4").error
    assert "ARM.field=value" in cli("config", "show", "--arm-set", "max_num_seqs=4").error
    monkeypatch.setenv("BATCHWRIGHT_SET_MAX_NUM_SEQ", "4")
    error = cli("config", "show").error
    assert "BATCHWRIGHT_SET_MAX_NUM_SEQ" in error and "'max_num_seqs'" in error


def test_a_value_out_of_its_range_names_its_source(cli: Cli) -> None:
    error = cli("config", "show", "--set", "max_num_seqs=-3").error
    assert "max_num_seqs is -3" in error and "--set max_num_seqs" in error


def test_schema_of_the_config(cli: Cli) -> None:
    schema = json.loads(cli("config", "schema").out)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["max_num_seqs"]["minimum"] == 1
    assert "PrefixCacheConfig" in schema["$defs"]


def test_schema_of_a_policys_parameters(cli: Cli, write: Write) -> None:
    schema = json.loads(cli("config", "schema", "--policy", "stall_free").out)
    assert schema["properties"]["chunk_size"]["default"] == 512
    assert "did you mean 'stall_free'?" in cli("config", "schema", "--policy", "stal_free").error
    write("mine.py", "from batchwright import Policy\nclass Mine(Policy):\n    pass\n")
    assert json.loads(cli("config", "schema", "--policy", "mine.py:Mine").out)["additionalProperties"] is False
