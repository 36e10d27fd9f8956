"""Record: ``cd tests && python -m goldens.record --out goldens/recorded``.

Cells that are in the files already are left alone, so an interrupted recording goes on where it
stopped. ``--weights DIR`` keeps the weights of short trainings there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from goldens.running import add_choice, chosen, computed, read_records, write_records


def main() -> None:
    """Compute what is missing, file by file, and write each cell as soon as it is there."""
    parser = argparse.ArgumentParser(prog="python -m goldens.record", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder, or one file for all parts")
    parser.add_argument("--again", action="store_true", help="also what is recorded already")
    add_choice(parser)
    options = parser.parse_args()
    cells = chosen(options, everything=True)
    for number, cell in enumerate(cells, 1):
        path = options.out / f"{cell.part}.json" if options.out.suffix != ".json" else options.out
        records = read_records(path)
        if cell.name in records and not options.again:
            continue
        value, seconds = computed(cell)
        if value is not None and "failed" in value:
            print("\n".join([f"{cell.name}: not recorded", value["failed"], *value["trace"]]))
        elif value is not None:
            records[cell.name] = value
            write_records(path, records)
        print(f"[{number}/{len(cells)}] {cell.name}: {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
