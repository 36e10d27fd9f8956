from __future__ import annotations

import gzip
import hashlib
import io
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from local_server import LocalServer

from metatkgr.data import catalog
from metatkgr.data.catalog import Fetcher, source_formats
from metatkgr.data.catalog.datasets import ENTRIES, CatalogEntry, CatalogFile, Recipe, Source
from metatkgr.errors import DataError, UnknownNameError

GITHUB = "https://raw.githubusercontent.com"
NAMES = ("YAGO", "WIKI", "ICEWS18", "ICEWS14")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with LocalServer() as running:
        yield running


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without datasets and without a network; gives its cache folder."""

    def offline(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.delenv("METATKGR_DATA", raising=False)
    monkeypatch.setenv("METATKGR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", offline)
    return tmp_path / "cache"


def fetcher(cache: Path) -> Fetcher:
    return Fetcher(cache, backoff=0.0, allow_loopback=True)


def at(server: LocalServer, wanted: CatalogEntry) -> CatalogEntry:
    """The same dataset with its public home on ``server``."""

    def moved(source: Source) -> Source:
        return replace(source, urls=tuple(u.replace(GITHUB, server.url) for u in source.urls))

    def rehomed(file: CatalogFile) -> CatalogFile:
        recipes = (
            replace(recipe, sources=tuple(map(moved, recipe.sources))) for recipe in file.recipes
        )
        return replace(file, recipes=tuple(recipes))

    return replace(wanted, files=tuple(map(rehomed, wanted.files)))


# A small invented dataset: three years, four entities, one of them unused.

ROWS = {
    "train": b"0\t0\t1\t0\n1\t1\t2\t0\n",
    "valid": b"0\t0\t2\t1\n",
    "test": b"2\t1\t0\t2\n",
}
ENTITIES = b"<B_b>\t1\t1900\n<A_\\u0022a\\u0022>\t0\t1900\n<C>\t2\t1900\n<B__b>\t3\t1900\n"
RELATIONS = b"<likes>\t0\n<owns>\t1\n"


def invented() -> CatalogEntry:
    contents = {f"{split}.tsv.gz": rows for split, rows in ROWS.items()}
    contents |= {"entity2id.txt": ENTITIES, "relation2id.txt": RELATIONS}

    def file(name: str, content: bytes) -> CatalogFile:
        source = name.replace(".tsv.gz", ".txt")
        convert = source_formats.quadruples if name != source else source_formats.as_published
        recipe = Recipe(
            (Source(source, (f"{GITHUB}/new/{source}", f"{GITHUB}/old/{source}")),), convert
        )
        return CatalogFile(name, len(content), hashlib.sha256(content).hexdigest(), (recipe,))

    files = tuple(file(*item) for item in contents.items())
    return CatalogEntry("SMALL", "", "", files, unit="year", origin=1900, naming="yago")


def serve_invented(server: LocalServer) -> None:
    for split, rows in ROWS.items():
        server.files[f"/new/{split}.txt"] = rows.replace(b"\n", b"\t0\n")
    server.files["/new/entity2id.txt"] = ENTITIES
    server.files["/new/relation2id.txt"] = RELATIONS


def test_an_invented_dataset_is_fetched_converted_and_loaded(
    server: LocalServer, tmp_path: Path
) -> None:
    serve_invented(server)
    wanted = at(server, invented())
    folder = fetcher(tmp_path).fetch(wanted)
    facts = catalog.load_folder(wanted, folder)
    assert [facts.describe(row) for row in range(len(facts))] == [
        ('A "a"', "likes", "B b", "1900"),
        ("B b", "owns", "C", "1900"),
        ('A "a"', "likes", "C", "1901"),
        ("C", "owns", 'A "a"', "1902"),
    ]
    assert len(facts.entities) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [".downloads", "SMALL"]
    assert not list((tmp_path / ".downloads").iterdir())


def test_padded_source_rows_are_converted(server: LocalServer, tmp_path: Path) -> None:
    serve_invented(server)
    server.files["/new/train.txt"] = b"0    \t0    \t1  \t0\t0\n1    \t1    \t2  \t0\t0\n"
    wanted = at(server, invented())
    assert len(catalog.load_folder(wanted, fetcher(tmp_path).fetch(wanted))) == 4


def test_an_absent_address_is_replaced_by_the_next(server: LocalServer, tmp_path: Path) -> None:
    serve_invented(server)
    server.files["/old/test.txt"] = server.files.pop("/new/test.txt")
    assert fetcher(tmp_path).fetch(at(server, invented())) == tmp_path / "SMALL"


def test_a_failed_fetch_leaves_no_dataset_and_the_next_one_goes_on(
    server: LocalServer, tmp_path: Path
) -> None:
    serve_invented(server)
    held_back = server.files.pop("/new/test.txt")
    wanted = at(server, invented())
    with pytest.raises(DataError, match="404"):
        fetcher(tmp_path).fetch(wanted)
    assert not (tmp_path / "SMALL").exists()
    server.files["/new/test.txt"] = held_back
    server.requests.clear()
    fetcher(tmp_path).fetch(wanted)
    assert "/new/train.txt" not in [path for path, _ in server.requests]


def test_changed_rows_at_the_public_home_are_refused(server: LocalServer, tmp_path: Path) -> None:
    serve_invented(server)
    right = server.files["/new/test.txt"]
    server.files["/new/test.txt"] = right.replace(b"2\t1", b"1\t1")
    wanted = at(server, invented())
    with pytest.raises(DataError, match=r"test.tsv.gz made from .* expected content with sha256"):
        fetcher(tmp_path).fetch(wanted)
    assert not (tmp_path / "SMALL").exists()
    server.files["/new/test.txt"] = right
    assert fetcher(tmp_path).fetch(wanted).exists(), "the wrong download was not kept"


def test_a_damaged_cache_is_repaired_by_fetching_only_what_is_damaged(
    server: LocalServer, tmp_path: Path
) -> None:
    serve_invented(server)
    wanted = at(server, invented())
    folder = fetcher(tmp_path).fetch(wanted)
    (folder / "valid.tsv.gz").write_bytes(b"not gzip")
    server.requests.clear()
    fetcher(tmp_path).fetch(wanted)
    assert [path for path, _ in server.requests] == ["/new/valid.txt"]
    assert len(catalog.load_folder(wanted, folder)) == 4
    server.requests.clear()
    fetcher(tmp_path).fetch(wanted)
    assert server.requests == [], "nothing is fetched twice"


def test_two_fetches_at_once_do_not_disturb_each_other(server: LocalServer, tmp_path: Path) -> None:
    serve_invented(server)
    wanted = at(server, invented())
    threads = [threading.Thread(target=fetcher(tmp_path).fetch, args=(wanted,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(catalog.load_folder(wanted, tmp_path / "SMALL")) == 4
    assert len(server.requests) == 5


def test_an_optional_file_that_cannot_be_had_is_left_out(
    server: LocalServer, tmp_path: Path
) -> None:
    serve_invented(server)
    wanted = invented()
    labels = CatalogFile(
        "labels.tsv", 3, "0" * 64, (Recipe((Source("labels", (f"{GITHUB}/no",)),)),), optional=True
    )
    wanted = at(server, replace(wanted, files=(*wanted.files, labels)))
    assert len(catalog.load_folder(wanted, fetcher(tmp_path).fetch(wanted))) == 4


def test_readable_names_are_unique_and_the_sources_spelling_is_found(
    server: LocalServer, tmp_path: Path
) -> None:
    serve_invented(server)
    wanted = at(server, invented())
    entities = catalog.load_folder(wanted, fetcher(tmp_path).fetch(wanted)).entities
    assert entities.names == ('A "a"', "B b", "C", "B  b")
    assert entities.id("<B_b>") == entities.id("B b") == 1
    assert "<C>" in entities
    assert "<D>" not in entities
    with pytest.raises(UnknownNameError, match="did you mean 'B b'"):
        entities.id("B-b", "entity")


def test_names_that_occur_twice_get_their_code_appended() -> None:
    assert catalog._unique(["x", "y", "x"], ["Q1", "Q2", "Q3"]) == ["x (Q1)", "y", "x (Q3)"]


def test_ids_that_are_not_a_numbering_are_refused() -> None:
    for text in (b"a\t0\nb\t0\n", b"a\t0\nb\t2\n", b"a\tzero\n"):
        with pytest.raises(DataError, match="twice there or out of range"):
            catalog._names_by_id(text, "entity2id.txt")


# Where datasets are looked for.


def test_names_are_found_in_any_case_and_unknown_ones_suggest_the_nearest() -> None:
    assert catalog.entry("icews18") is ENTRIES["ICEWS18"]
    assert tuple(catalog.ENTRIES) == NAMES
    with pytest.raises(UnknownNameError, match="unknown dataset 'YAGOO'; did you mean 'YAGO'"):
        catalog.locate("YAGOO")


def test_the_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METATKGR_CACHE", str(tmp_path / "own"))
    assert catalog.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("METATKGR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert catalog.cache_folder() == tmp_path / "shared" / "metatkgr"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.cache_folder() == tmp_path / ".cache" / "metatkgr"


def test_a_given_folder_comes_before_the_cache_and_an_incomplete_one_does_not_count(
    no_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    monkeypatch.setenv("METATKGR_DATA", str(given))
    required = [file.name for file in ENTRIES["YAGO"].files]
    for folder in (given / "YAGO", no_data / "YAGO"):
        folder.mkdir(parents=True)
        for name in required:
            (folder / name).touch()
    assert catalog.locate("yago") == given / "YAGO"
    (given / "YAGO" / "test.tsv.gz").unlink()
    assert catalog.locate("yago") == no_data / "YAGO"
    (no_data / "YAGO" / "entity2id.txt").unlink()
    assert catalog.locate("yago") is None


@pytest.mark.parametrize("fetch", [True, False])
def test_offline_and_absent_says_which_files_to_put_where(no_data: Path, fetch: bool) -> None:
    with pytest.raises(DataError) as caught:
        catalog.load("YAGO", fetch=fetch)
    message = str(caught.value)
    for part in (
        "train.tsv.gz, valid.tsv.gz, test.tsv.gz, entity2id.txt, relation2id.txt",
        str(no_data / "YAGO"),
        "METATKGR_DATA",
        "metatkgr data fetch YAGO",
    ):
        assert part in message
    assert fetch == ("name resolution" in message)


def test_offline_with_an_incomplete_given_folder_names_what_it_lacks(
    no_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METATKGR_DATA", str(tmp_path))
    (tmp_path / "YAGO").mkdir()
    (tmp_path / "YAGO" / "train.tsv.gz").touch()
    with pytest.raises(DataError) as caught:
        catalog.load("YAGO")
    assert f"put valid.tsv.gz, test.tsv.gz, entity2id.txt, relation2id.txt into {tmp_path}" in str(
        caught.value
    )


def test_a_cache_that_cannot_be_written_is_one_clear_sentence(
    no_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_data.write_text("a file where a folder should be")
    with pytest.raises(DataError, match="METATKGR_CACHE"):
        catalog.load("YAGO")


def test_every_address_of_the_catalogue_is_https_on_the_datasets_home() -> None:
    urls = [
        url
        for wanted in ENTRIES.values()
        for file in wanted.files
        for recipe in file.recipes
        for source in recipe.sources
        for url in source.urls
    ]
    assert len(urls) > 30
    assert all(url.startswith(f"{GITHUB}/") for url in urls)


# Conversions.


def test_intervals_are_expanded_year_by_year_within_the_clip_range() -> None:
    train = b"5\t1\t6\t1788-##-##\t1789-##-##\n7\t0\t8\t####-##-##\t1787-##-##\n"
    valid = b"1\t0\t2\t1700-##-##\t1786-##-##"  # no newline at the end
    test = b"3\t0\t4\t1996-##-##\t####-##-##\n9\t0\t9\t1790-##-##\t1789-##-##\n"
    rows = source_formats.wiki_training_rows([train, valid, test])
    assert rows.decode().split("\n")[:-1] == [
        "7\t0\t8\t0",
        "1\t0\t2\t0",
        "7\t0\t8\t1",
        "5\t1\t6\t2",
        "5\t1\t6\t3",
        "3\t0\t4\t210",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1\t2\t3\n", "should hold 4, found 3"),
        (b"1\t2\t3\t4\n\n", "should hold 8, found 4"),
        (b"1\t2\t3\t-4\n", "found b'-'"),
        (b"1\t2\t3\t4.5\n", "found b'.'"),
        (b"\n", "should hold 4, found 0"),
        (b"<html>", "found b'<html>'"),
    ],
)
def test_text_that_is_not_a_table_of_integers_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        source_formats.parse_integers(text, 4, "test.tsv")


def test_tables_survive_writing_and_reading() -> None:
    table = np.random.default_rng(0).integers(0, 10**12, (100, 4))
    text = source_formats.rows_of(table)
    assert np.array_equal(source_formats.parse_integers(text, 4, "x"), table)
    assert text.count(b"\n") == 100


def test_an_archive_without_its_member_is_refused() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("ICEWS18/valid.txt", "")
    for content in (archive.getvalue(), b"not an archive"):
        with pytest.raises(DataError, match=r"train\.txt|not a zip archive"):
            source_formats.zipped_quadruples([content])


# The published datasets.


def source_rows(folder: Path, split: str, *, padded: bool = False) -> bytes:
    """Rows as the public home writes them; ICEWS18 pads its columns."""
    text = gzip.decompress((folder / f"{split}.tsv.gz").read_bytes())
    if not padded:
        return text.replace(b"\n", b"\t0\n")
    table = source_formats.parse_integers(text, 4, split)
    return (("%-5d\t%-5d\t%-3d\t%d\t0\n" * len(table)) % tuple(table.ravel().tolist())).encode()


def serve_published(server: LocalServer, name: str, data: Path) -> None:
    """Make the public home of a dataset from its files, as RE-Net and the others have them."""
    commits = {"rows": "6ea8383af38d8afdcfe6e928bcae72841af72672"}
    commits["names"] = "9264ba7c204c8e869cde1c51511f613434f5a353"
    if name == "ICEWS18":
        commits["rows"] = "c497e16b93cceec14c222f81d0dff75aa4169beb"
        commits["names"] = "3b270d8eede1fb747f732c654a1e7c01104684af"
    home = "/INK-USC/RE-Net"
    if name == "ICEWS14":
        home = "/nec-research/TKG-Forecasting-Evaluation"
        commits = dict.fromkeys(commits, "7ccd9328b100c0c10a119a4897aa60602945c8d6")
    for split in ("train", "valid", "test"):
        path = f"{home}/{commits['rows']}/data/{name}/{split}.txt"
        server.files[path] = source_rows(data / name, split, padded=name == "ICEWS18")
    for kind in ("entity", "relation"):
        path = f"{home}/{commits['names']}/data/{name}/{kind}2id.txt"
        server.files[path] = (data / name / f"{kind}2id.txt").read_bytes()
    if name == "ICEWS14":
        for path, rows in server.files.items():
            if path.endswith(("train.txt", "valid.txt", "test.txt")):
                server.files[path] = rows.replace(b"\t0\n", b"\t-1\n")
    if name in ("WIKI", "ICEWS18"):
        # The large train files are taken from the other homes, to exercise these conversions.
        train = server.files.pop(f"{home}/{commits['rows']}/data/{name}/train.txt")
    if name == "ICEWS18":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as opened:
            opened.writestr("ICEWS18/train.txt", train)
        commit = "fe10f1930b3b1cbfbdb3c25342da917c679499a6"
        server.files[f"/mqygit/TKGs/{commit}/ICEWS18.zip"] = archive.getvalue()
    if name == "WIKI":
        atise = "/soledad921/ATISE/a35b57084b535d37342b29ac80e1246aee308ae3/wikidata"
        for split in ("train", "valid", "test"):
            content = (data / "WIKIDATA12K" / f"{split}.tsv.gz").read_bytes()
            server.files[f"{atise}/{split}.txt"] = gzip.decompress(content)
        rows = (data / "WIKI" / "relation_labels.tsv").read_text("utf-8").split("\n")[:-1]
        swapped = "".join("{1}\t{0}\t{2}\n".format(*row.split("\t")) for row in reversed(rows))
        tilp = "/xiongsiheng/TILP/6dda6a00e79324d4fb1112957f55d6fcff0532b9"
        server.files[f"{tilp}/data/WIKIDATA12k/relation2id.txt"] = swapped.encode()
        rows = (data / "WIKI" / "entity_labels_partial.tsv").read_text("utf-8").split("\n")[:-1]
        coded = sorted(row.split("\t", 1)[1] for row in [*rows, "\tQ0\tnobody"])
        literally = "/GenetAsefa/LiterallyWikidata/52da319aa07bfced7a62d7ad9c26a89f50edf3bc"
        path = f"{literally}/Datasets/Entities/entity_labels_en.txt"
        server.files[path] = "".join(f"{row}\n" for row in coded).encode()


@pytest.mark.real_data
@pytest.mark.parametrize("name", NAMES)
def test_the_whole_chain_from_the_public_home_gives_the_published_dataset(
    name: str, real_data: Path, server: LocalServer, tmp_path: Path
) -> None:
    serve_published(server, name, real_data)
    wanted = at(server, ENTRIES[name])
    folder = fetcher(tmp_path).fetch(wanted)
    assert {path.name for path in folder.iterdir()} == {file.name for file in wanted.files}
    catalog.verify(name, folder)
    fetched = catalog.load_folder(wanted, folder)
    given = catalog.load_folder(wanted, real_data / name)
    for column in ("subject", "relation", "object", "time"):
        assert np.array_equal(getattr(fetched, column), getattr(given, column))
    assert fetched.entities.labels == given.entities.labels
    assert fetched.relations.labels == given.relations.labels


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "facts", "entities", "relations", "first", "last"),
    [
        ("yago", 201_089, 10_623, 10, "1830", "2018"),
        ("Wiki", 662_282, 12_554, 24, "1786", "2017"),
        ("ICEWS18", 468_558, 23_033, 256, "2018-01-01", "2018-10-31"),
        ("ICEWS14", 90_730, 7_128, 230, "2014-01-01", "2014-12-31"),
    ],
)
def test_a_published_dataset_loads_with_names_and_dates(
    name: str, facts: int, entities: int, relations: int, first: str, last: str, real_data: Path
) -> None:
    loaded = catalog.load(name, fetch=False)
    assert loaded.name == name.upper()
    assert len(loaded) == facts
    assert len(loaded.entities) == len(set(loaded.entities)) == entities
    assert len(loaded.relations) == len(set(loaded.relations)) == relations
    assert loaded.calendar.label(0) == first
    assert loaded.calendar.label(loaded.steps - 1) == last


@pytest.mark.real_data
def test_published_names_read_as_people_write_them(real_data: Path) -> None:
    yago = catalog.load("YAGO", fetch=False)
    assert yago.entities[4946] == "Getafe CF"
    assert yago.entities.id("<Getafe_CF>") == yago.entities.id("Getafe CF") == 4946
    assert yago.entities.id('Don "Red" Barry') == yago.entities.id("<Don_\\u0022Red\\u0022_Barry>")
    assert yago.relations[2] == "playsFor"
    wiki = catalog.load("WIKI", fetch=False)
    assert wiki.entities[2454] == "Q202735"
    assert wiki.entities.label(2454) == "Billy Bob Thornton"
    assert wiki.entities.id("Billy Bob Thornton") == 2454
    assert wiki.relations.label(22) == "member of sports team"
    assert len(set(wiki.entities.labels.values())) == 2_568
    icews = catalog.load("ICEWS18", fetch=False)
    assert icews.describe(0) == ("Kim Jong-Un", "Make statement", "North Korea", "2018-01-01")


@pytest.mark.real_data
def test_a_dataset_without_its_labels_still_loads(real_data: Path, tmp_path: Path) -> None:
    for file in ENTRIES["WIKI"].files:
        if not file.optional:
            (tmp_path / file.name).symlink_to((real_data / "WIKI" / file.name).absolute())
    catalog.verify("WIKI", tmp_path)
    facts = catalog.load_folder(ENTRIES["WIKI"], tmp_path)
    assert facts.entities.label(2454) == "Q202735"


@pytest.mark.real_data
def test_a_wrong_file_is_named_with_what_was_expected_and_found(
    real_data: Path, tmp_path: Path
) -> None:
    for file in ENTRIES["YAGO"].files:
        (tmp_path / file.name).write_bytes((real_data / "YAGO" / file.name).read_bytes())
    changed = tmp_path / "relation2id.txt"
    changed.write_bytes(changed.read_bytes().replace(b"<owns>", b"<ownz>"))
    with pytest.raises(
        DataError, match=r"relation2id.txt .* sha256 83e4.* found .* fetch .* again"
    ):
        catalog.verify("YAGO", tmp_path)
    changed.write_bytes(b"")
    with pytest.raises(DataError, match="expected 140 bytes of content, found 0"):
        catalog.load_folder(ENTRIES["YAGO"], tmp_path)
    changed.unlink()
    with pytest.raises(DataError, match=r"lacks relation2id.txt of YAGO"):
        catalog.verify("YAGO", tmp_path)
    cut = tmp_path / "train.tsv.gz"
    cut.write_bytes(cut.read_bytes()[:-1000])
    changed.write_bytes((real_data / "YAGO" / "relation2id.txt").read_bytes())
    with pytest.raises(DataError, match=r"cannot read .*train.tsv.gz"):
        catalog.verify("YAGO", tmp_path)


@pytest.mark.real_data
def test_loading_needs_nothing_but_numpy(real_data: Path) -> None:
    program = """
import sys
for name in ("pyarrow", "polars", "pandas", "matplotlib", "tqdm", "torch", "typer", "rich"):
    sys.modules[name] = None
from metatkgr.data import catalog
print(len(catalog.load("YAGO", fetch=False)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "201089"
