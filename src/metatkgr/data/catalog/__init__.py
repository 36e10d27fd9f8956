"""The catalogue of published datasets: YAGO, WIKI, ICEWS18 and ICEWS14.

A dataset is a folder ``<NAME>`` with ``train.tsv.gz``, ``valid.tsv.gz``, ``test.tsv.gz`` (subject,
relation, object, time as integers), ``entity2id.txt`` and ``relation2id.txt``. It is looked for in
``$METATKGR_DATA``, then in the user's cache (``$METATKGR_CACHE``, else
``$XDG_CACHE_HOME/metatkgr``, else ``~/.cache/metatkgr``), and else fetched into the cache. Every
file is checked against its published content whenever it is read; nothing but numpy is needed.

``datasets`` names the files and their sums, ``download`` gets what is absent, ``source_formats``
converts what their public homes offer.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metatkgr.data.catalog.datasets import ENTRIES, CatalogEntry, CatalogFile, Source
from metatkgr.data.catalog.download import DownloadError, Progress, download, terminal_progress
from metatkgr.data.catalog.source_formats import parse_integers
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.errors import DataError, UnknownNameError
from metatkgr.files import exclusive

__all__ = [
    "ENTRIES",
    "CatalogEntry",
    "Fetcher",
    "cache_folder",
    "entry",
    "fetch_dataset",
    "load",
    "load_folder",
    "locate",
    "verify",
]

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def entry(name: str) -> CatalogEntry:
    """The dataset called ``name``, in capitals or not."""
    known = ENTRIES.get(name.upper())
    if known is None:
        raise UnknownNameError("dataset", name, ENTRIES)
    return known


def cache_folder() -> Path:
    """Where fetched datasets are kept."""
    if own := os.environ.get("METATKGR_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "metatkgr"


def locate(name: str) -> Path | None:
    """The folder that holds all files the dataset needs, or None when there is none."""
    wanted = entry(name)
    for folder in _places(wanted):
        if not _missing(wanted, folder):
            return folder
    return None


def verify(name: str, folder: Path) -> None:
    """Check every file in ``folder`` to the byte.

    Raises:
        DataError: a file is missing or is not the published one.
    """
    _checked(entry(name), folder)


def fetch_dataset(name: str) -> Path:
    """Fetch a dataset into the user's cache, where it is not there yet, and return its folder."""
    wanted = entry(name)
    try:
        return Fetcher(cache_folder(), terminal_progress()).fetch(wanted)
    except DataError as error:
        raise DataError(f"{error}\n{_where_to_put(wanted)}") from error
    except OSError as error:
        raise DataError(
            f"cannot keep {wanted.name} in {cache_folder()}: {error}; name a folder that can be"
            " written to in METATKGR_CACHE"
        ) from error


def load(name: str, *, fetch: bool = True) -> Facts:
    """The facts of a dataset with names and calendar dates.

    Args:
        name: YAGO, WIKI or ICEWS18, in capitals or not.
        fetch: whether to fetch the dataset when it is not on this machine.
    """
    wanted = entry(name)
    folder = locate(name)
    if folder is None:
        if not fetch:
            raise DataError(f"{wanted.name} is not on this machine.\n{_where_to_put(wanted)}")
        folder = fetch_dataset(name)
    return load_folder(wanted, folder)


def load_folder(wanted: CatalogEntry, folder: Path) -> Facts:
    """The facts of the dataset ``wanted``, whose files are in ``folder``."""
    contents = _checked(wanted, folder)
    splits = [f"{split}.tsv.gz" for split in ("train", "valid", "test")]
    table = np.concatenate(
        [parse_integers(contents[split], 4, str(folder / split)) for split in splits]
    )
    units, rest = np.divmod(table[:, 3], wanted.ticks)
    if rest.any():
        raise DataError(f"{wanted.name} has a time that is not a whole {wanted.unit}")
    return Facts.build(
        table[:, 0],
        table[:, 1],
        table[:, 2],
        units + wanted.origin,
        entities=_vocabulary(wanted, contents, "entity", "entity_labels_partial.tsv"),
        relations=_vocabulary(wanted, contents, "relation", "relation_labels.tsv"),
        unit=wanted.unit,
        name=wanted.name,
    )


def _places(wanted: CatalogEntry) -> list[Path]:
    """Folders where a dataset may be, best first."""
    given = os.environ.get("METATKGR_DATA")
    own = [Path(given).expanduser() / wanted.name] if given else []
    return [*own, cache_folder() / wanted.name]


def _missing(wanted: CatalogEntry, folder: Path) -> list[str]:
    return [
        file.name
        for file in wanted.files
        if not file.optional and not (folder / file.name).is_file()
    ]


def _where_to_put(wanted: CatalogEntry) -> str:
    folder = _places(wanted)[0]
    other = (
        "METATKGR_DATA names its parent"
        if os.environ.get("METATKGR_DATA")
        else f"or into a folder {wanted.name} whose parent METATKGR_DATA names"
    )
    return (
        f"To use {wanted.name} without a network, put {', '.join(_missing(wanted, folder))} into"
        f" {folder} ({other}). `metatkgr data fetch {wanted.name}` on a machine with a network"
        f" makes these files in its own cache, from {wanted.home}."
    )


def _checked(wanted: CatalogEntry, folder: Path) -> dict[str, bytes]:
    """The checked contents of all files that are there."""
    if missing := _missing(wanted, folder):
        raise DataError(f"{folder} lacks {', '.join(missing)} of {wanted.name}")
    return {
        file.name: file.read(folder)
        for file in wanted.files
        if not file.optional or (folder / file.name).is_file()
    }


def _vocabulary(
    wanted: CatalogEntry, contents: dict[str, bytes], kind: str, label_file: str
) -> Vocabulary:
    written = _names_by_id(contents[f"{kind}2id.txt"], f"{wanted.name}/{kind}2id.txt")
    if wanted.naming == "yago":
        spellings = {spelling: number for number, spelling in enumerate(written)}
        return Vocabulary(_unique(map(_readable, written), written), aliases=spellings)
    if wanted.naming == "wikidata" and label_file in contents:
        rows = [line.split("\t") for line in contents[label_file].decode().split("\n") if line]
        labels = _unique([row[2] for row in rows], [row[1] for row in rows])
        return Vocabulary(written, dict(zip((int(row[0]) for row in rows), labels, strict=True)))
    return Vocabulary(written)


def _names_by_id(text: bytes, what: str) -> list[str]:
    """Names in order of id, from lines 'name id …' in any order."""
    # Not splitlines(), which would also cut at characters that occur within names.
    rows = [line.split("\t")[:2] for line in text.decode().split("\n") if line]
    names = [""] * len(rows)
    for name, number in rows:
        if not number.isdigit() or int(number) >= len(names) or names[int(number)]:
            raise DataError(f"{what}: the id {number!r} of {name!r} is twice there or out of range")
        names[int(number)] = name
    return _unique(names, [f"#{number}" for number in range(len(names))])


def _unique(names: Iterable[str], codes: Iterable[str]) -> list[str]:
    """Names, with ' (code)' appended to those that occur more than once."""
    names = list(names)
    count = Counter(names)
    return [
        f"{name} ({code})" if count[name] > 1 else name
        for name, code in zip(names, codes, strict=True)
    ]


def _readable(written: str) -> str:
    """YAGO's '<Don_\\u0022Red\\u0022_Barry>' as 'Don "Red" Barry'."""
    bare = written.removeprefix("<").removesuffix(">")
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), bare).replace("_", " ")


@dataclass(frozen=True)
class Fetcher:
    """Downloads, converts, checks, and only then puts a dataset's folder in its place.

    Killed at any moment, it leaves no half a dataset; a later call goes on with the downloads
    that have begun.
    """

    cache: Path
    """The folder that gets one folder per dataset."""
    progress: Progress | None = None
    backoff: float = 1.0
    allow_loopback: bool = False
    """Accept plain http from this very machine (for tests)."""

    def fetch(self, entry: CatalogEntry) -> Path:
        """Make ``<cache>/<NAME>`` complete and correct, and return it.

        Files that are there already are kept when they are right. An optional file that cannot be
        had is left out.
        """
        target = self.cache / entry.name
        self.cache.mkdir(parents=True, exist_ok=True)
        # One process at a time fetches a dataset; one that dies frees the lock.
        with exclusive(self.cache / f".{entry.name}.lock"):
            contents = {file.name: _existing(file, target) for file in entry.files}
            if None not in contents.values():
                return target
            downloads = self.cache / ".downloads" / entry.name
            fresh = self.cache / f".{entry.name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            for file in entry.files:
                content = contents[file.name]
                try:
                    content = self._make(file, downloads) if content is None else content
                except DataError:
                    if not file.optional:
                        raise
                    continue
                if file.name.endswith(".gz"):
                    content = gzip.compress(content, 6, mtime=0)
                (fresh / file.name).write_bytes(content)
            _swap(fresh, target)
            shutil.rmtree(downloads, ignore_errors=True)
        return target

    def _make(self, file: CatalogFile, downloads: Path) -> bytes:
        """The content of ``file`` by the first of its recipes whose sources exist."""
        for recipe in file.recipes:
            last = recipe is file.recipes[-1]
            try:
                paths = [self._download(source, downloads) for source in recipe.sources]
            except DownloadError as error:
                if last or not error.absent:
                    raise
                continue
            try:
                content = recipe.convert([path.read_bytes() for path in paths])
                addresses = ", ".join(source.urls[0] for source in recipe.sources)
                file.check(content, f"{file.name} made from {addresses}")
            except (DataError, UnicodeDecodeError) as error:
                # Wrong downloads must not be found, and believed, by the next attempt.
                for path in paths:
                    path.unlink()
                if last:
                    raise DataError(str(error)) from error
                continue
            return content
        raise AssertionError(f"{file.name} has no recipe")

    def _download(self, source: Source, downloads: Path) -> Path:
        path = downloads / source.name
        if path.exists():
            return path
        for url in source.urls:
            try:
                return download(
                    url,
                    path,
                    sha256=source.sha256,
                    progress=self.progress,
                    backoff=self.backoff,
                    allow_loopback=self.allow_loopback,
                )
            except DownloadError as error:
                if url == source.urls[-1] or not error.absent:
                    raise
        raise AssertionError(f"{source.name} has no address")


def _existing(file: CatalogFile, folder: Path) -> bytes | None:
    try:
        return file.read(folder)
    except DataError:
        return None


def _swap(fresh: Path, target: Path) -> None:
    """Put ``fresh`` where ``target`` is, or was; a folder can only replace an empty one."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(fresh, target)
    shutil.rmtree(old, ignore_errors=True)
