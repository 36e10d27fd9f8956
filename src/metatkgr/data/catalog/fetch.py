"""Gets a dataset of the catalogue from its public home into the user's cache."""

from __future__ import annotations

import gzip
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from metatkgr.data.catalog.datasets import CatalogEntry, CatalogFile, Source
from metatkgr.data.catalog.download import DownloadError, Progress, download
from metatkgr.errors import DataError
from metatkgr.files import exclusive

__all__ = ["Fetcher"]


@dataclass(frozen=True)
class Fetcher:
    """Downloads, converts, checks, and only then puts a dataset's folder in its place.

    Killed at any moment, it leaves no half a dataset; a later call goes on with the downloads
    that have begun.
    """

    cache: Path
    """The folder that gets one folder per dataset."""
    progress: Progress | None = None
    timeout: float = 30
    retries: int = 3
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
                    timeout=self.timeout,
                    retries=self.retries,
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
