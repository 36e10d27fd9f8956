"""Files: written so that a crash leaves the old one or the new one, read without trusting them."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from metatkgr.errors import DataError, MetaTKGRError

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "atomic_path",
    "check_digests",
    "check_file",
    "check_signature",
    "exclusive",
    "read_bytes",
    "read_json",
    "read_key",
    "read_text",
    "read_toml",
    "to_toml",
    "user_folder",
    "write_digests",
    "write_json",
    "write_signature",
    "write_text",
]

_LOG = logging.getLogger(__name__)

MOST_BYTES = 1 << 26
"""Of a file that is read whole; no file of ours comes near, but for the names of a large graph."""

_SHORTEST_KEY = 32


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its name when the block ends well.

    Missing folders are made. The temporary keeps the suffix, for writers that choose a format by
    it; it is removed when the block fails.

    Raises:
        DataError: the file cannot be written there.
    """
    target = Path(path)
    temporary = target.with_name(f".{secrets.token_hex(6)}-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except (OSError, SafetensorError) as error:
        # A full disk is an OSError, but for safetensors, which has an error of its own.
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot write {target}: {reason}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def exclusive(path: str | Path, busy: MetaTKGRError | None = None) -> Iterator[None]:
    """Within it, no other process is within it for the same path.

    The lock is the system's own, on a file that is there meanwhile, so that it ends with its
    process, however that ends. Where a file system knows no locks, none is taken.

    Args:
        path: the file; its folder is made.
        busy: what to raise where another process holds the lock; None: it is waited for.

    Raises:
        DataError: the file cannot be made.
    """
    if fcntl is None:
        yield
        return
    path = Path(path)
    file = _locked(path, busy)
    try:
        yield
    finally:
        # Removed while it is locked; who waits for it finds that the name is gone.
        with suppress(OSError):
            path.unlink()
        os.close(file)


def _locked(path: Path, busy: MetaTKGRError | None) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
            except BlockingIOError:
                os.close(file)
                raise busy from None  # type: ignore[misc]  # only where it need not wait
            except OSError as error:
                _LOG.warning("%s cannot be locked (%s); make sure nobody else writes", path, error)
                return file
            if _is_still(path, file):
                return file
            os.close(file)
    except OSError as error:
        raise DataError(f"cannot write to {path.parent}: {error.strerror or error}") from error


def _is_still(path: Path, file: int) -> bool:
    """Whether the name leads to the file that was locked, not to a later one."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    """Have a new name outlive a loss of power, where the system can promise that."""
    with suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON atomically; NaN and infinity are refused, they are no JSON."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def to_toml(content: Mapping[str, Any]) -> str:
    """A dictionary of numbers, texts, truths, lists and dictionaries of them as TOML."""
    lines: list[str] = []
    _add_table(lines, (), content)
    return "\n".join(lines).lstrip("\n") + "\n"


def _add_table(lines: list[str], path: tuple[str, ...], content: Mapping[str, Any]) -> None:
    plain = {key: value for key, value in content.items() if not isinstance(value, Mapping)}
    if path and (plain or not content):
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    # JSON's strings, numbers, booleans and lists of them are TOML's too.
    lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in content.items():
        if isinstance(value, Mapping):
            _add_table(lines, (*path, key), value)


def _key(name: str) -> str:
    """A name as a key of TOML; in quotes it may hold any character."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def check_file(path: Path) -> None:
    """Refuse what is not an ordinary file: reading a pipe or a device may never end.

    Raises:
        DataError: there is no such file, or it is something else.
    """
    try:
        if path.is_file():
            return
        there = path.exists()
    except (OSError, ValueError) as error:
        raise DataError(f"{str(path)!r} cannot be read: {error}") from None
    raise DataError(f"{path} is not an ordinary file" if there else f"there is no file {path}")


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of an ordinary file of at most so many bytes.

    Raises:
        DataError: it is not there, not ordinary, or too large.
    """
    check_file(path)
    try:
        # Should a pipe have taken the file's place meanwhile, it is not waited for.
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with open(number, "rb") as file:
            about = os.fstat(number)
            if not stat.S_ISREG(about.st_mode):
                raise DataError(f"{path} is not an ordinary file")
            if about.st_size > most:
                raise DataError(
                    f"{path} has {about.st_size:,} bytes, too many for a file of its kind"
                )
            return file.read(about.st_size)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """The content of a JSON file of at most so many bytes.

    Raises:
        DataError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(read_text(path, most))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        DataError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {error}") from None


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The content of a text file in UTF-8, with plain ends of lines; see :func:`read_bytes`."""
    try:
        return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from None


def user_folder(kind: str) -> Path:
    """A folder of the user's own, for what the program keeps: made where missing, for no one else.

    It lies in ``$XDG_DATA_HOME/metatkgr``, else in ``~/.local/share/metatkgr``.

    Raises:
        DataError: it cannot be made.
    """
    chosen = Path(os.environ.get("XDG_DATA_HOME", ""))
    try:
        home = chosen if chosen.is_absolute() else Path.home() / ".local" / "share"
        folder = home / "metatkgr" / kind
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"no folder can be made for your data ({error}): set XDG_DATA_HOME"
        ) from None


def write_digests(path: Path, names: Iterable[str]) -> None:
    """Write the SHA-256 of files beside ``path`` into it, in the form of ``sha256sum``."""
    write_text(path, "".join(f"{_digest(path.with_name(name))}  {name}\n" for name in names))


def check_digests(path: Path, names: Iterable[str]) -> None:
    """Refuse files that are not those of which :func:`write_digests` has written.

    Raises:
        DataError: it names the file.
    """
    pairs = (line.split("  ", 1) for line in read_text(path).splitlines())
    known = {pair[1]: pair[0] for pair in pairs if len(pair) == 2}
    for name in names:
        if known.get(name) != _digest(path.with_name(name)):
            raise DataError(
                f"{path.with_name(name)} is damaged: it is not what was written, says {path.name}; "
                "copy it again, or make it again"
            )


def write_signature(path: Path, key: Path) -> None:
    """Sign a file: what who has the key can make of it goes beside it, with ``.hmac`` behind."""
    write_text(path.with_name(f"{path.name}.hmac"), f"{_signature(path, key)}\n")


def check_signature(path: Path, key: Path) -> None:
    """Refuse a file to which :func:`write_signature` was not put with this key.

    Raises:
        DataError: it was not, or the file was changed since.
    """
    signature = path.with_name(f"{path.name}.hmac")
    if not signature.exists():
        raise DataError(f"{path.parent} is not signed: there is no {signature.name} in it")
    if not hmac.compare_digest(read_bytes(signature).strip(), _signature(path, key).encode()):
        raise DataError(f"{path.parent} was not signed with the key {key}, or changed since")


def read_key(key: Path) -> bytes:
    """The key in a file.

    Raises:
        DataError: it holds none.
    """
    secret = read_bytes(key).strip()
    if len(secret) < _SHORTEST_KEY:
        raise DataError(
            f"{key} holds no key: it has at least {_SHORTEST_KEY} characters; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return secret


def _signature(path: Path, key: Path) -> str:
    return hmac.new(read_key(key), read_bytes(path), "sha256").hexdigest()


def _digest(path: Path) -> str:
    check_file(path)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
