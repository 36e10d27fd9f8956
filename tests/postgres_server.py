"""A PostgreSQL server of the tests' own, on a loopback port, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ACCOUNT = "postgres"


def why_not() -> str | None:
    """Why no server can be started here; None where one can."""
    if _programs() is None:
        return "PostgreSQL's server is absent: install Debian's package postgresql"
    if os.getuid() == 0 and (shutil.which("setpriv") is None or _ids_of_account() is None):
        return "PostgreSQL does not run as root, and there is no account 'postgres' to run it"
    return None


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server with an empty database; yields its URL."""
    programs = _programs()
    assert programs is not None
    with tempfile.TemporaryDirectory(prefix="metatkgr-postgres-") as name:
        folder = Path(name)
        if account := (_ids_of_account() if os.getuid() == 0 else None):
            os.chown(folder, *account)
        data = folder / "data"
        _run(programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-N", "-E", "UTF8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder}"
        control = (programs / "pg_ctl", "-D", data, "-w", "-s")
        _run(*control, "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            _run(*control, "-m", "immediate", "stop")


def run(program: str, *words: str) -> None:
    """Run a program that comes with the server, as whoever runs this."""
    programs = _programs()
    assert programs is not None
    folder = (programs / "initdb").resolve().parent  # a link may stand for some of them alone
    subprocess.run([folder / program, *words], check=True, stdout=subprocess.DEVNULL)


def _programs() -> Path | None:
    found = [Path(p).parent for p in [shutil.which("initdb")] if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists()), None)


def _ids_of_account() -> tuple[int, int] | None:
    import pwd

    try:
        entry = pwd.getpwnam(_ACCOUNT)
    except KeyError:
        return None
    return entry.pw_uid, entry.pw_gid


def _run(*words: object) -> None:
    command = list(map(str, words))
    if os.getuid() == 0:
        command = [
            "setpriv",
            f"--reuid={_ACCOUNT}",
            f"--regid={_ACCOUNT}",
            "--clear-groups",
            *command,
        ]
    subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL)
