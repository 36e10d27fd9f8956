"""The packages that this one stands on: declared, pinned, licensed.

``python -m audit.packages [FOLDER]`` lists them, and writes the bill of materials (CycloneDX) and,
for each extra, a file of requirements with hashes into the folder; ``--lowest`` prints constraints.

What can be said without asking anyone. Known vulnerabilities are pip-audit's business (``make
audit``), which needs the network.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from metatkgr import __version__

ROOT = Path(__file__).parent.parent.parent
BESIDE = ("benchmarks", "studies")
"""Folders of code that are not in the wheel."""
PYTHONS = ("3.11", "3.12", "3.13")
"""For which requirements are written."""
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
    """Requirements of ``pyproject.toml``, by extra; those of every install under ''.

    An extra that names others has their requirements.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}

    def requirements(extra: str) -> list[Requirement]:
        found: list[Requirement] = []
        for requirement in map(Requirement, groups[extra]):
            if plain(requirement.name) == "metatkgr":
                found += [r for other in sorted(requirement.extras) for r in requirements(other)]
            else:
                found.append(requirement)
        return found

    return {extra: requirements(extra) for extra in groups}


def lowest() -> str:
    """Constraints: every declared package at the lowest version that is allowed."""
    lines = set()
    for requirement in (r for requirements in declared().values() for r in requirements):
        versions = [one.version for one in requirement.specifier if one.operator in (">=", "==")]
        assert len(versions) == 1, f"{requirement} has no lowest version"
        lines.add(f"{plain(requirement.name)}=={versions[0]}")
    assert len(lines) == len({line.partition("=")[0] for line in lines}), "two lowest versions"
    return "\n".join(sorted(lines)) + "\n"


RUNTIME = tuple(extra for extra in declared() if extra not in ("", "dev", "docs", "all"))
"""Extras that are used, not developed with."""


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
        if name in found:
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


def bill_of_materials() -> dict[str, Any]:
    """All packages that run, as CycloneDX: what comes with extras only is optional."""
    always, all_of_them = needed(()), sorted(needed(RUNTIME))
    addresses = {name: f"pkg:pypi/{name}@{_version(name)}" for name in all_of_them}
    components = [
        {
            "type": "library",
            "bom-ref": addresses[name],
            "name": name,
            "version": _version(name),
            "purl": addresses[name],
            "scope": "required" if name in always else "optional",
            "licenses": [{"license": {"name": licence(name) or "not told"}}],
        }
        for name in all_of_them
    ]
    own = {"type": "library", "bom-ref": "metatkgr", "name": "metatkgr", "version": __version__}
    direct = sorted({plain(r.name) for rs in declared().values() for r in rs} & addresses.keys())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own | {"licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": components,
        "dependencies": [
            {"ref": "metatkgr", "dependsOn": [addresses[name] for name in direct]},
            *({"ref": addresses[n], "dependsOn": _requires(n, addresses)} for n in all_of_them),
        ],
    }


def _version(name: str) -> str:
    return metadata.version(name).partition("+")[0]


def _requires(name: str, addresses: dict[str, str]) -> list[str]:
    names = {plain(Requirement(text).name) for text in metadata.requires(name) or []}
    return sorted(addresses[other] for other in names if other in addresses and other != name)


def locked(extra: str, python: str) -> str:
    """Requirements of an install with the sum of every file, for a Python and this platform.

    They are what pip would take from the index it is set to; it looks, and installs nothing. What
    hangs on the version of Python by a marker is chosen for the one that runs this: pip's limit.
    """
    wanted = [str(r) for key, rs in declared().items() if key in ("", extra) for r in rs]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report"]
        command += [str(report), "--ignore-installed", "-c", str(ROOT / "constraints.txt")]
        command += ["--python-version", python, "--only-binary", ":all:", "--target", folder]
        subprocess.run([*command, *wanted], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = []
    for package in found:
        about, sums = package["metadata"], package["download_info"]["archive_info"]["hashes"]
        lines.append(f"{plain(about['name'])}=={about['version']} --hash=sha256:{sums['sha256']}")
    return "\n".join(sorted(lines)) + "\n"


def main() -> None:
    """Print the packages; with a folder, write the bill and the locked requirements there."""
    if sys.argv[1:] == ["--lowest"]:
        print(lowest(), end="")
        return
    known = pins()
    for name in sorted(needed(RUNTIME)):
        pin = known.get(name, "NOT PINNED")
        print(f"{name:28} {_version(name):14} {pin:14} {licence(name)[:60]}")
    if sys.argv[1:]:
        folder = sys.argv[1]
        Path(folder).mkdir(parents=True, exist_ok=True)
        bill = json.dumps(bill_of_materials(), indent=2) + "\n"
        (Path(folder) / "sbom.cdx.json").write_text(bill, encoding="utf-8")
        for python in PYTHONS:
            for extra in RUNTIME:
                path = Path(folder) / f"{extra}-py{python.replace('.', '')}.txt"
                try:
                    path.write_text(locked(extra, python), encoding="utf-8")
                except subprocess.CalledProcessError:
                    print(f"{path.name}: not everything that is pinned has a wheel for {python}")


if __name__ == "__main__":
    main()
