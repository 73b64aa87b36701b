"""``batchwright new-policy``: a distribution to start from."""

from __future__ import annotations

import keyword
import re
import shlex
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli.options import Debug

if TYPE_CHECKING:
    from batchwright.plugins import Plugins

PREFIX = "batchwright-"
_LONGEST = 50
FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    ".github/workflows/test.yml": "ci.yml.txt",
    "src/$package/__init__.py": "__init__.py.txt",
    "src/$package/plugin.py": "plugin.py.txt",
    "src/$package/policy.py": "policy.py.txt",
    "src/$package/py.typed": "",
    "tests/test_$policy.py": "test_policy.py.txt",
}
"""File of the new distribution to its template in ``batchwright/cli/distribution``."""


def new_policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the policy: lower-case letters, digits and dashes.")],
    directory: Annotated[
        Path, typer.Option("--directory", metavar="FOLDER", help="Where its folder is made.", show_default=False)
    ] = Path(),
    debug: Debug = False,
) -> None:
    """Write a distribution with a policy of your own: installable, tested, found by its name.

    \b
    Examples:
      batchwright new-policy shortest-first
      batchwright new-policy shortest-first --directory ~/policies

    It makes a folder batchwright-NAME with a package (policy, parameters, registration), tests that run the conformance
    kit, a README and a CI file. The policy in it works; its rank is where to begin. Nothing is overwritten. What to
    type next (pip install, pytest, batchwright check, batchwright ab) is printed.

    Exit code: 0; 2 where the name cannot be, or its folder is there already.
    """
    from batchwright.cli.output import make_console, say
    from batchwright.plugins import load_plugins

    names = names_of(name)
    _check_free(names, load_plugins())
    folder = directory / names["distribution"]
    written = write(folder, names)
    console = make_console()
    say(console, f"{folder} has {len(written)} files; the policy is in {folder}/src/{names['package']}/policy.py")
    say(console, "now:")
    where = folder if folder.is_absolute() else f"./{folder}"  # a bare name would be looked up in an index
    for command in (
        f"pip install --editable {shlex.quote(f'{where}[test]')}",
        f"pytest {folder}",
        f"batchwright check {names['policy']}",
        f"batchwright ab prefill_first {names['policy']}",
    ):
        say(console, f"  {command}")


def names_of(name: str) -> dict[str, str]:
    """What a policy of that name is called everywhere.

    Returns:
        ``distribution``, ``package``, ``policy`` and ``class_name``.

    Raises:
        ConfigError: a policy cannot have that name; the message says why, and gives one that it can have.
    """
    from batchwright.errors import ConfigError

    why = _fault_of(name)
    if why is not None:
        words = re.findall(r"[a-z0-9]+", name.lower().removeprefix("batchwright"))
        better = re.sub(r"^[^a-z]+", "", "-".join(words))[:_LONGEST].rstrip("-")
        hint = f"; {better!r} would do" if better and _fault_of(better) is None else ""
        raise ConfigError(f"new-policy {name!r}: {why}{hint}")
    policy = name.replace("-", "_")
    return {
        "distribution": PREFIX + policy.replace("_", "-"),
        "package": f"batchwright_{policy}",
        "policy": policy,
        "class_name": "".join(word.capitalize() for word in policy.split("_")),
    }


def _fault_of(name: str) -> str | None:
    """Why a policy cannot have that name; None: it can."""
    if not name:
        return "a policy needs a name"
    if name.replace("_", "-").startswith(PREFIX) or name == "batchwright":
        return "the distribution gets the prefix batchwright- by itself; give the policy's own name"
    wrong = sorted({c for c in name if not re.fullmatch(r"[a-z0-9_-]", c)})
    if wrong:
        return f"{' '.join(map(repr, wrong))} cannot be in it: lower-case letters, digits, '-' and '_' can"
    if not name[0].isalpha():
        return "it must begin with a letter"
    if re.search(r"[-_]{2}|[-_]$", name):
        return "a dash stands between two words"
    if keyword.iskeyword(name):
        return "it is a keyword of Python"
    if len(name) > _LONGEST:
        return f"it has {len(name)} characters, and {_LONGEST} are the most"
    return None


def _check_free(names: dict[str, str], installed: Plugins) -> None:
    from batchwright.errors import ConfigError

    for kind, taken in (("policy", installed.policies), ("plugin", installed.plugins)):
        if names["policy"] in taken:
            raise ConfigError(f"a {kind} {names['policy']!r} is installed already; choose another name")
    if find_spec(names["package"]) is not None:
        raise ConfigError(f"a package {names['package']!r} is installed already; choose another name")


def write(folder: Path, names: dict[str, str]) -> list[Path]:
    """Write the distribution.

    Args:
        folder: where; it must not exist, or be empty.
        names: as :func:`names_of` gives them.

    Returns:
        The files.

    Raises:
        ConfigError: something is there already, or it cannot be written.
    """
    from batchwright.errors import ConfigError

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already, and nothing is overwritten: remove it, or give --directory")
    templates = files("batchwright.cli") / "distribution"
    written = []
    try:
        for target, template in FILES.items():
            path = folder / Template(target).substitute(names)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = (templates / template).read_text(encoding="utf-8") if template else ""
            path.write_text(Template(text).substitute(names), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; give --directory another folder") from None
    return written
