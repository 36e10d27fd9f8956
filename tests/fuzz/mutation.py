"""Small damage: to bytes, to text, to the values of JSON and TOML, to files."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

__all__ = [
    "damage_bytes",
    "damage_header",
    "damage_value",
    "odd_text",
    "odd_value",
    "put_file",
    "remove_file",
]

_ODD_TEXTS = [
    *("", " ", "\t", "\n", "\r\n", "\0", "\ufeff", "\u2028", "\x1b[31m", "\ud800", "é", "🦉"),
    *("nan", "inf", "-inf", "NaN", "null", "None", "true", "yes", "0", "1", "-1", "1e9", "0x10"),
    *("1_000", "٣", "½", "9" * 30, "-" + "9" * 400, "1e400", "3.5", "--", "=", "a=b", "'", '"'),
    *("../../x", "/etc/passwd", "~/x", "C:\\x", "%s%n", "{0}", "$(x)", "`x`", "<b>", "; drop"),
    *("2018-01-01", "2018-13-01", "1987-##-##", "####", "2018-01-01T24:00:00", "10000-01-01"),
    *("object", "subject", "time", "x" * 600, "\\", "a\\", "[", "{", "#", "," * 5, "\x7f", "\x85"),
]


def odd_text(rng: random.Random) -> str:
    """A text that has broken programs before."""
    draw = rng.random()
    if draw < 0.8:
        return rng.choice(_ODD_TEXTS)
    if draw < 0.95:
        return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x300)))) for _ in "12345")
    return rng.choice("ax9é[{") * rng.choice((10, 1000, 20_000))


def odd_value(rng: random.Random) -> Any:
    """A value that JSON can hold, of any type."""
    return rng.choice(
        (
            lambda: None,
            lambda: rng.random() < 0.5,
            lambda: rng.choice((0, 1, -1, 2, 3, 7, 2**31, 2**63, -(2**63) - 1, 10**18, 10**400)),
            lambda: rng.choice((0.0, -0.0, 0.5, -1.5, 1e-300, 1e308, float("inf"), float("nan"))),
            lambda: odd_text(rng),
            lambda: [],
            lambda: {},
            lambda: [odd_text(rng), 1],
            lambda: {odd_text(rng): 1},
            lambda: [[[]]],
        )
    )()


def damage_value(rng: random.Random, content: Any, times: int = 1) -> Any:
    """A copy of nested values with something replaced, removed, added or wrapped."""
    content = copy.deepcopy(content)
    for _ in range(times):
        content = _damage_once(rng, content, depth=0)
    return content


def _damage_once(rng: random.Random, content: Any, depth: int) -> Any:
    if isinstance(content, dict) and content and rng.random() < 0.93 - 0.1 * depth:
        key = rng.choice(list(content))
        draw = rng.random()
        if draw < 0.1:
            del content[key]
        elif draw < 0.2:
            content[odd_text(rng)] = content[key]
        else:
            content[key] = _damage_once(rng, content[key], depth + 1)
        return content
    if isinstance(content, list) and content and rng.random() < 0.9 - 0.1 * depth:
        at = rng.randrange(len(content))
        draw = rng.random()
        if draw < 0.1:
            del content[at]
        elif draw < 0.2:
            content.insert(at, copy.deepcopy(content[at]))
        else:
            content[at] = _damage_once(rng, content[at], depth + 1)
        return content
    return odd_value(rng)


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes cut, flipped, repeated or spliced."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        kind, size = rng.randrange(7), len(changed)
        at = rng.randrange(size) if size else 0
        if kind == 0 or not size:
            del changed[at:]
        elif kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            changed[at] = rng.randrange(256)
        elif kind == 3:
            end = min(size, at + rng.randrange(1, 40))
            del changed[at:end]
        elif kind == 4:
            end = min(size, at + rng.randrange(1, 40))
            changed[at:at] = changed[at:end]
        elif kind == 5:
            changed[at:at] = odd_text(rng).encode("utf-8", "surrogatepass")[:2000]
        else:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
    return bytes(changed)


def damage_header(rng: random.Random, data: bytes) -> bytes:
    """The bytes of a safetensors file with another header: names, types, shapes, offsets, length.

    The header is JSON: ``{"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {…}}``, after
    its length as eight bytes.
    """
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    kind = rng.randrange(8)
    entry = header[rng.choice(names)]
    if kind == 0:
        entry["shape"] = rng.choice(([], [0], [2**62, 2], [2**31], [-1], [1, *entry["shape"]]))
    elif kind == 1:
        entry["dtype"] = rng.choice(("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "X9"))
    elif kind == 2:
        entry["data_offsets"] = rng.choice(([0, 0], [0, 2**63], [8, 4], [-8, 8], [len(body)] * 2))
    elif kind == 3:
        header[odd_text(rng)] = header.pop(rng.choice(names))
    elif kind == 4:
        del header[rng.choice(names)]
    elif kind == 5:
        # Another shape of the same size: the file itself is in order.
        shape = entry["shape"]
        entry["shape"] = [*shape[:-1], 1, *shape[-1:]] if shape else [1]
    elif kind == 6:
        header = damage_value(rng, header)
    else:
        length = rng.choice((0, 1, length - 1, length + 1, 2**63, 2**40))
        return struct.pack("<Q", length) + data[8:]
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + body


def put_file(rng: random.Random, path: Path, data: bytes) -> None:
    """Write a file; sometimes put a folder, a pipe, a device or a link to nowhere there instead."""
    draw = rng.random()
    if draw >= 0.05:
        path.write_bytes(data)
        return
    path.unlink()
    if draw < 0.01:
        path.mkdir()
    elif draw < 0.02:
        os.mkfifo(path)
    elif draw < 0.03:
        path.symlink_to("/dev/zero")
    elif draw < 0.04:
        path.symlink_to("../" * rng.randrange(1, 5) + "nothing")
    else:
        path.symlink_to(path.name)


def remove_file(path: Path) -> None:
    """Whatever is there."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
