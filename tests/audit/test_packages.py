"""No package without a pin, none imported undeclared, all under licences that fit."""

from __future__ import annotations

from importlib import metadata

import pytest
import torch

pytest.importorskip("packaging")

from audit.packages import (
    FREE,
    LESSER,
    RUNTIME,
    bill_of_materials,
    declared,
    imported,
    licence,
    lowest,
    needed,
    pins,
    plain,
)

without_cuda = pytest.mark.skipif(
    torch.version.cuda is not None, reason="pins and licences are those of torch without CUDA"
)


def test_every_import_is_of_a_declared_package() -> None:
    known = {plain(r.name) for requirements in declared().values() for r in requirements}
    homes = metadata.packages_distributions()
    for module, files in imported().items():
        packages = {plain(name) for name in homes.get(module, [module])}
        assert packages & known, f"{module} is imported by {sorted(files)[0]} and not declared"


def test_every_requirement_allows_its_pin() -> None:
    known = pins()
    for extra, requirements in declared().items():
        for requirement in requirements:
            name = plain(requirement.name)
            assert name in known, f"{name} ({extra or 'every install'}) is not pinned"
            assert requirement.specifier.contains(known[name], prereleases=True), str(requirement)


def test_every_requirement_says_its_lowest_version_and_all_extras_agree() -> None:
    assert "typer==0.16\n" in lowest()
    assert "mcp==2.0\n" in lowest()


@without_cuda
def test_every_installed_package_is_pinned_and_of_that_version() -> None:
    known, found = pins(), needed((*RUNTIME, "dev")) - {"setuptools"}
    for name in found:
        assert name in known, f"{name} is not pinned"
        version = metadata.version(name).partition("+")[0]
        assert version == known[name], f"{name} {version} is not the pinned version"
    assert {"torch", "numpy", "pytest", "hypothesis"} <= found


@without_cuda
def test_all_that_runs_is_free_to_use() -> None:
    for name in needed(RUNTIME) - {"setuptools"}:
        told = licence(name)
        assert FREE.search(told) or LESSER.search(told), f"{name}: the licence {told!r}"
        lesser = LESSER.search(told) and not FREE.search(told)
        assert not lesser or name.startswith("psycopg"), f"{name}: {told}"


def test_the_only_lesser_licence_is_an_optional_drivers() -> None:
    lesser = {name for name in needed(RUNTIME) if LESSER.search(licence(name))}
    assert all(name.startswith("psycopg") for name in lesser), lesser
    without = tuple(extra for extra in RUNTIME if extra != "postgresql")
    assert not lesser & needed(without), "no other extra has it, nor an install without any"


@without_cuda
def test_the_bill_of_materials_holds_all_that_runs_and_points_nowhere_else() -> None:
    bill = bill_of_materials()
    parts = {part["bom-ref"]: part for part in bill["components"]}
    assert {part["name"] for part in parts.values()} == needed(RUNTIME)
    assert len(parts) == len(bill["components"])
    required = {part["name"] for part in parts.values() if part["scope"] == "required"}
    assert {"torch", "numpy", "duckdb"} <= required
    assert not {"fastapi", "ray", "psycopg"} & required
    assert all(part["licenses"][0]["license"]["name"] != "not told" for part in parts.values())
    known = {*parts, "metatkgr"}
    for dependency in bill["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= known
