"""What the catalogue holds: the datasets, their files with checksums, and their public homes.

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

from metatkgr.data.catalog import source_formats as formats
from metatkgr.errors import DataError
from metatkgr.files import check_file

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


def _github(repository: str, commit: str, path: str) -> tuple[str, ...]:
    """The file as it was at ``commit``, or as it is now should that address stop working."""
    return tuple(f"{_GITHUB}/{repository}/{ref}/{path}" for ref in (commit, "HEAD"))


def _files(
    dataset: str,
    rows: tuple[str, str],
    names: tuple[str, str],
    sums: Sequence[tuple[int, str]],
    *others: Recipe,
) -> tuple[CatalogFile, ...]:
    """The five files that every dataset has.

    Args:
        dataset: its folder in the repositories.
        rows, names: repository and commit of the rows and of the vocabularies.
        sums: size and checksum of the content of each, in the order of ``_FIVE``.
        others: ways to make the first that are tried where there is no such file.
    """
    made: list[CatalogFile] = []
    for name, (size, sha256) in zip(_FIVE, sums, strict=True):
        published = name.replace(".tsv.gz", ".txt")
        path = f"data/{dataset}/{published}"
        if published == name:
            recipe = Recipe((Source(published, _github(*names, path), sha256),))
        else:
            recipe = Recipe((Source(published, _github(*rows, path)),), formats.quadruples)
        made.append(CatalogFile(name, size, sha256, (recipe, *(() if made else others))))
    return tuple(made)


# The commits of RE-Net at which the files below have the content that is checked for.
_ROWS = ("INK-USC/RE-Net", "6ea8383af38d8afdcfe6e928bcae72841af72672")
_NAMES = ("INK-USC/RE-Net", "9264ba7c204c8e869cde1c51511f613434f5a353")
_ICEWS_ROWS = ("INK-USC/RE-Net", "c497e16b93cceec14c222f81d0dff75aa4169beb")
_ICEWS_NAMES = ("INK-USC/RE-Net", "3b270d8eede1fb747f732c654a1e7c01104684af")
# Other homes.
_ATISE = "a35b57084b535d37342b29ac80e1246aee308ae3"
_TKGS = "fe10f1930b3b1cbfbdb3c25342da917c679499a6"
_TILP = "6dda6a00e79324d4fb1112957f55d6fcff0532b9"
_LITERALLY = "52da319aa07bfced7a62d7ad9c26a89f50edf3bc"

_YAGO_FILES = _files(
    "YAGO",
    _ROWS,
    _NAMES,
    (
        (2_519_966, "5c2c8a864def1ae9aadafe195bb9fdf88521da46d95a987dd49194bb27b66d71"),
        (308_991, "92918895603a637d6ed0a9456648f4c2209f5af545bd3453c1ffe4791b7bfea7"),
        (316_907, "65e3581bf30a34bca40d64befadd7a0a484d52b6c112160ef2368f251b1343fc"),
        (494_943, "3a5482d19f80b3936ca735ea105db799f5c500b170c57f7a59f0ea2650231789"),
        (140, "83e460205fa11720980c814aa99d70b4ec42ff9571f7ce9915390e262fc8dc34"),
    ),
)

_WIKIDATA12K = Recipe(
    tuple(
        Source(
            f"wikidata12k-{split}.txt",
            _github("soledad921/ATISE", _ATISE, f"wikidata/{split}.txt"),
        )
        for split in ("train", "valid", "test")
    ),
    formats.wiki_training_rows,
)
_RELATION_LABELS = Source(
    "relation_labels.txt",
    _github("xiongsiheng/TILP", _TILP, "data/WIKIDATA12k/relation2id.txt"),
)
_ENTITY_LABELS = Source(
    "entity_labels.txt",
    _github("GenetAsefa/LiterallyWikidata", _LITERALLY, "Datasets/Entities/entity_labels_en.txt"),
)
_WIKI_FIVE = _files(
    "WIKI",
    _ROWS,
    _NAMES,
    (
        (8_178_014, "5e36f75249d12d35cfbcdf1cf28ba7a01ed2fdba9eebda2509f5df382285bebd"),
        (1_121_507, "95f47263e8f129ebe160404b636ea2870079e50d444513dc59a6518efe57950e"),
        (1_050_220, "478d3323e70cb2f4d3f3049a2ed4cb87a0bb899e00960ded4e08aff1028f0090"),
        (166_023, "307628d198b9369b650d46bb88980b38ed0957a9e8148227c94907f9b2804f01"),
        (178, "50e6d3c632dde882c8a84aece1eda1f640f4a79a184033eb0941c10dad90e517"),
    ),
    _WIKIDATA12K,
)
_WIKI_FILES = (
    *_WIKI_FIVE,
    CatalogFile(
        "relation_labels.tsv", 624,
        "056f2dfc2779bba06b73728253e93e3c1f14f32b1d03c2e70ff54cc3f54c28b3",
        (Recipe((_RELATION_LABELS,), formats.relation_labels),),
        optional=True,
    ),
    CatalogFile(
        "entity_labels_partial.tsv", 77_422,
        "63f51d59724e331f59d8efa5bf3ac3140ecaa0a0ba1684e520f64cf7d4a672d4",
        (
            Recipe(
                (_WIKI_FIVE[3].recipes[0].sources[0], _ENTITY_LABELS), formats.entity_labels
            ),
        ),
        optional=True,
    ),
)  # fmt: skip

_ICEWS_ARCHIVE = Source("ICEWS18.zip", _github("mqygit/TKGs", _TKGS, "ICEWS18.zip"))
_ICEWS_FILES = _files(
    "ICEWS18",
    _ICEWS_ROWS,
    _ICEWS_NAMES,
    (
        (5_902_515, "ea576e4f25cc5a5e63360772c2b081cf218d9435f9ee06ff1b81d75e045f7c9c"),
        (735_883, "75ce1c828fe7f8b48554c150ebb1c3fea439cb47b1a1fdd1948bc09cd8bd371f"),
        (799_858, "f202f8e6023d66f07943ba8c0f5a0ff56d8a3e02b486fc9352db7e6c436ac7d4"),
        (674_797, "7d247def04f9e0a70b986da665fce498ef2057779842dd83af1df3df5c5e6d74"),
        (8_772, "6099be14a4bb517019146818704858af040843df4caa77b816552223330dcb49"),
    ),
    Recipe((_ICEWS_ARCHIVE,), formats.zipped_quadruples),
)

# ICEWS14 with the split by time that later work uses.
_NEC = ("nec-research/TKG-Forecasting-Evaluation", "7ccd9328b100c0c10a119a4897aa60602945c8d6")
_ICEWS14_FILES = _files(
    "ICEWS14",
    _NEC,
    _NEC,
    (
        (1_061_168, "622ea7f1356660577d60079b74d7f97f3598857ce4a2f388d9870954c8d98507"),
        (121_369, "c9f226d63284613c1b23ad6f0678afcf0c69b463ebc583fe7f902a33dad13971"),
        (105_805, "7679bb9c853e284b95c60a8622f9c8ad5691cf541b1d22f13d3365318f4bff29"),
        (198_027, "0251b09f1c2e56cdc5506f9d7f83e7a88d5d54c3df25609ae8ce4edb7fb3e573"),
        (7_626, "32fcce0906d05205824f03e980981436a71a85feba72a817f5291e4afda9d04e"),
    ),
)

_DATASETS = (
    CatalogEntry(
        name="YAGO",
        about="people, clubs, places and prizes; yearly, 1830 to 2018",
        home="https://github.com/INK-USC/RE-Net/tree/HEAD/data/YAGO",
        files=_YAGO_FILES,
        unit="year",
        origin=1830,
        naming="yago",
        published=Published(10_623, 10, 201_090, "1 year", 0.417),
    ),
    CatalogEntry(
        name="WIKI",
        about="Wikidata's offices, memberships, awards and places; yearly, 1786 to 2017",
        home="https://github.com/INK-USC/RE-Net/tree/HEAD/data/WIKI",
        files=_WIKI_FILES,
        unit="year",
        origin=1786,
        naming="wikidata",
        published=Published(12_554, 24, 669_935, "1 year", 0.613),
    ),
    CatalogEntry(
        name="ICEWS18",
        about="political events coded from news; daily, 2018-01-01 to 2018-10-31",
        home="https://github.com/INK-USC/RE-Net/tree/HEAD/data/ICEWS18",
        files=_ICEWS_FILES,
        unit="day",
        origin=17_532,  # 2018-01-01
        ticks=24,  # the files count hours
        published=Published(23_033, 256, 281_205, "1 day", 0.098),
    ),
    CatalogEntry(
        name="ICEWS14",
        about="political events coded from news; daily, 2014-01-01 to 2014-12-31; not in the paper",
        home="https://github.com/nec-research/TKG-Forecasting-Evaluation/tree/HEAD/data/ICEWS14",
        files=_ICEWS14_FILES,
        unit="day",
        origin=16_071,  # 2014-01-01
        ticks=24,
    ),
)

ENTRIES: dict[str, CatalogEntry] = {entry.name: entry for entry in _DATASETS}
"""By name, as written in tables."""
