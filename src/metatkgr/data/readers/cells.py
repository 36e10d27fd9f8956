"""The cells of one line of text, exactly; ``readers.lines`` has the rules."""

from __future__ import annotations

__all__ = ["NotARowError", "decoded", "sample_cells", "split_line"]


class NotARowError(ValueError):
    """Why a line cannot be split into cells.

    Args:
        cell: position of the cell that is to blame.
        value: what it holds.
        reason: why that cannot be read.
    """

    def __init__(self, cell: int, value: str, reason: str) -> None:
        super().__init__(reason)
        self.cell, self.value, self.reason = cell, value, reason


def _split_quoted(line: str, delimiter: str) -> list[str]:
    """The cells of one line in which some may be quoted."""
    cells: list[str] = []
    at = 0
    while True:
        begin = at
        while begin < len(line) and line[begin] == " " and delimiter != " ":
            begin += 1
        if line[begin : begin + 1] == '"':
            pieces = []
            at = begin + 1
            while True:
                close = line.find('"', at)
                if close < 0:
                    raise NotARowError(len(cells), line[begin:], "a quote that is never closed")
                pieces.append(line[at:close])
                at = close + 2
                if line[close + 1 : at] != '"':
                    break
            stop = line.find(delimiter, close + 1)
            stop = len(line) if stop < 0 else stop
            if line[close + 1 : stop].strip(" "):
                raise NotARowError(len(cells), line[begin:stop], "text after a closing quote")
            cells.append('"'.join(pieces))
        else:
            stop = line.find(delimiter, at)
            stop = len(line) if stop < 0 else stop
            if '"' in line[at:stop]:
                raise NotARowError(
                    len(cells), line[at:stop], "a quote inside a cell that is not quoted"
                )
            cells.append(line[at:stop])
        if stop == len(line):
            return cells
        at = stop + 1


def split_line(line: str, delimiter: str) -> list[str]:
    """The cells of a line; NotARowError where it has none."""
    line = line.rstrip("\r")
    for character, reason in (
        ("\r", "a carriage return inside a line (rows end in a line feed)"),
        ("\0", "a NUL character"),
    ):
        if character in line:
            cells = line.split(delimiter)
            at = next(at for at, cell in enumerate(cells) if character in cell)
            raise NotARowError(at, cells[at], reason)
    if delimiter != "\t" and '"' in line:
        return _split_quoted(line, delimiter)
    return line.split(delimiter)


def sample_cells(line: str, delimiter: str) -> list[str]:
    """The cells of a line, for guessing only: never fails."""
    try:
        return _split_quoted(line, delimiter) if delimiter != "\t" else line.split("\t")
    except NotARowError:
        return line.split(delimiter)


def decoded(line: bytes, delimiter: str) -> str:
    """A line as text; where it is none, the error says which cell is to blame."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        pass
    # Latin-1 maps each byte to one character, so the line can be split like any other.
    for at, cell in enumerate(sample_cells(line.decode("latin-1"), delimiter)):
        raw = cell.encode("latin-1")
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            value = raw.decode("utf-8", "backslashreplace")
            raise NotARowError(at, value, "not valid UTF-8") from None
    raise AssertionError("a line is valid UTF-8 if all its cells are")  # pragma: no cover
