"""What the catalogue holds (``datasets.toml``): datasets, their files with checksums, public homes.

The checksums are those of a file's *content* (of the decompressed text for ``.gz`` files): gzip
gives different bytes on different machines, the rows are what must not change.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metatkgr.data.catalog import source_formats as formats
from metatkgr.errors import DataError
from metatkgr.files import check_file, read_toml

__all__ = ["ENTRIES", "CatalogEntry", "CatalogFile", "Published", "Recipe", "Source"]

_FIVE = ("train.tsv.gz", "valid.tsv.gz", "test.tsv.gz", "entity2id.txt", "relation2id.txt")
_GITHUB = "https://raw.githubusercontent.com"
_REPLACE = "delete it and fetch the dataset again (`metatkgr data fetch NAME`)"


@dataclass(frozen=True)
class Source:
    """One file at a dataset's public home."""

    name: str
    """What to call it among the downloads of its dataset."""
    urls: tuple[str, ...]
    """Addresses, tried in order until one has the file."""
    sha256: str | None = None
    """Checksum, where the published file itself is what the catalogue keeps."""


@dataclass(frozen=True)
class Recipe:
    """How to make one catalogue file from source files."""

    sources: tuple[Source, ...]
    convert: Callable[[Sequence[bytes]], bytes] = formats.as_published


@dataclass(frozen=True)
class CatalogFile:
    """One file of a dataset's folder."""

    name: str
    size: int
    """Bytes of content."""
    sha256: str
    """Checksum of the content."""
    recipes: tuple[Recipe, ...]
    """Ways to get it, tried in order; all give the same content."""
    optional: bool = False
    """Whether the dataset can be used without it."""

    def read(self, folder: Path) -> bytes:
        """The content, decompressed and checked; DataError when it is not the catalogue's."""
        path = folder / self.name
        try:
            check_file(path)
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                # Reading one byte too many shows a longer file without unpacking all of it.
                content = file.read(self.size + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"cannot read {path}: {error}; {_REPLACE}") from error
        self.check(content, str(path))
        return content

    def check(self, content: bytes, where: str) -> None:
        """Raise DataError unless ``content`` is the catalogue's, to the byte."""
        if len(content) != self.size:
            actual = f"{len(content):,}" if len(content) < self.size else f"more than {self.size:,}"
            raise DataError(
                f"{where} is not the published file: expected {self.size:,} bytes of content,"
                f" found {actual}; {_REPLACE}"
            )
        actual = hashlib.sha256(content).hexdigest()
        if actual != self.sha256:
            raise DataError(
                f"{where} is not the published file: expected content with sha256 {self.sha256},"
                f" found {actual}; {_REPLACE}"
            )


@dataclass(frozen=True)
class Published:
    """The paper's figures for a dataset (its dataset table and appendix)."""

    entities: int
    relations: int
    facts: int
    time_unit: str
    share_in_last_quarter: float
    """Share of the entities that first appear in the last 25 % of the time steps."""


@dataclass(frozen=True)
class CatalogEntry:
    """A dataset: its files, its names and its calendar."""

    name: str
    about: str
    """One line for lists."""
    home: str
    """Where a person finds it."""
    files: tuple[CatalogFile, ...]
    unit: str
    """Unit of the calendar."""
    origin: int
    """Raw time (see ``data.calendar``) of the files' time 0."""
    ticks: int = 1
    """How many of the files' time units make one unit of the calendar."""
    naming: str = "plain"
    """How names are written: 'plain', 'yago' (``<Getafe_CF>``) or 'wikidata' (codes + labels)."""
    published: Published | None = None


def _source(
    name: str, repository: str, commit: str, path: str, sha256: str | None = None
) -> Source:
    """The file as it was at ``commit``, or as it is now should that address stop working."""
    urls = tuple(f"{_GITHUB}/{repository}/{ref}/{path}" for ref in (commit, "HEAD"))
    return Source(name, urls, sha256)


def _recipe(content: dict[str, Any], known: Sequence[CatalogFile] = ()) -> Recipe:
    """A recipe of ``datasets.toml``; its first source may be that of one of the known files."""
    first = (file.recipes[0].sources[0] for file in known if file.name == content.get("of"))
    sources = (_source(*words) for words in content["sources"])
    return Recipe((*first, *sources), getattr(formats, content["convert"]))


def _entry(name: str, content: dict[str, Any]) -> CatalogEntry:
    """A dataset of ``datasets.toml``."""
    files: list[CatalogFile] = []
    others = [_recipe(content.pop("others"))] if "others" in content else []
    rows, names = content.pop("rows"), content.pop("names")
    for file, (size, sha256) in zip(_FIVE, content.pop("sums"), strict=True):
        published = file.replace(".tsv.gz", ".txt")
        path = f"data/{name}/{published}"
        named = published == file
        repository, commit = names if named else rows
        source = _source(published, repository, commit, path, sha256 if named else None)
        recipe = Recipe((source,), formats.as_published if named else formats.quadruples)
        files.append(CatalogFile(file, size, sha256, (recipe, *(() if files else others))))
    for more in content.pop("optional", ()):
        size, sha256 = more["sum"]
        recipes = (_recipe(more, files),)
        files.append(CatalogFile(more["name"], size, sha256, recipes, optional=True))
    if "published" in content:
        content["published"] = Published(*content["published"])
    return CatalogEntry(name=name, files=tuple(files), **content)


ENTRIES: dict[str, CatalogEntry] = {
    name: _entry(name, content)
    for name, content in read_toml(Path(__file__).with_name("datasets.toml")).items()
}
"""By name, as written in tables."""
