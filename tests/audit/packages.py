"""The packages that this one stands on: declared, pinned, licensed. ``python -m audit.packages``.

What can be said without asking anyone. Known vulnerabilities are pip-audit's business (``make
audit``), which needs the network.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
BESIDE = ("benchmarks", "studies")
"""Folders of code that are not in the wheel."""
FREE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|HPND|Unlicense|CC0|Zlib|0BSD|"
    r"Historical Permission|Public Domain|CNRI",
    re.IGNORECASE,
)
"""Licences under which a package may be used beside anything."""
LESSER = re.compile(r"LGPL|Lesser General Public", re.IGNORECASE)
"""May be used as a library; a distribution has to let its user exchange it."""


def plain(name: str) -> str:
    """A package's name as all spellings of it are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Versions of ``constraints.txt``; a line that is no exact pin, or the second, is an error."""
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, equals, version = line.partition("==")
            if not equals or not re.fullmatch(r"[\w.+!-]+", version):
                raise AssertionError(f"constraints.txt: {line!r} is not an exact pin")
            if plain(name) in found:
                raise AssertionError(f"constraints.txt: {name} is pinned twice")
            found[plain(name)] = version
    return found


def declared() -> dict[str, list[Requirement]]:
    """Requirements of ``pyproject.toml``, by extra; those of every install under ''."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [Requirement(text) for text in texts] for extra, texts in groups.items()}


def imported() -> dict[str, set[str]]:
    """Top-level modules imported from elsewhere, with the files that do."""
    found: dict[str, set[str]] = {}
    ours = {"metatkgr", *BESIDE}
    for path in (path for folder in ("src", *BESIDE) for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top not in ours and top not in sys.stdlib_module_names:
                    found.setdefault(top, set()).add(str(path.relative_to(ROOT)))
    return found


def needed(extras: tuple[str, ...]) -> set[str]:
    """Names of all packages that an install with these extras brings, as far as they are here."""
    waiting = [
        requirement
        for extra, requirements in declared().items()
        if not extra or extra in extras
        for requirement in requirements
    ]
    found: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = plain(requirement.name)
        if name in found or name == "metatkgr":
            continue
        try:
            wanted = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for text in wanted:
            inner = Requirement(text)
            options = [{"extra": extra} for extra in ("", *requirement.extras)]
            if inner.marker is None or any(inner.marker.evaluate(how) for how in options):
                waiting.append(inner)
    return found


def licence(name: str) -> str:
    """What a package says about its licence; empty where it says nothing."""
    about = metadata.metadata(name)
    texts = [about.get("License-Expression") or ""]
    classifiers = about.get_all("Classifier") or []
    texts += [c.rpartition(":")[2].strip() for c in classifiers if "License ::" in c]
    texts.append((about.get("License") or "").strip().partition("\n")[0][:80])
    return next((text for text in texts if text and text != "UNKNOWN"), "")


def main() -> None:
    known = pins()
    for name in sorted(needed(("plots", "serve", "track", "tune", "cluster"))):
        version = metadata.version(name).partition("+")[0]
        print(f"{name:28} {version:14} {known.get(name, 'NOT PINNED'):14} {licence(name)[:60]}")


if __name__ == "__main__":
    main()
