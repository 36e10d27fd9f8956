"""Every command does what its help says, and says what is wrong when something is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import Run
from metatkgr import __version__


def test_help_names_every_command(run: Run) -> None:
    shown = run("--help")
    assert shown.code == 0
    for command in ("demo", "data", "evaluate", "compare"):
        assert command in shown.out
    for command in ("list", "fetch", "stats", "plot", "simulate"):
        assert command in run("data", "--help").out


def test_version_is_the_packages(run: Run) -> None:
    assert run("--version").out.strip() == f"metatkgr {__version__}"


def test_the_module_can_be_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metatkgr", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert __version__ in done.stdout


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["train", "--help"]])
def test_what_computes_nothing_imports_nothing_that_computes(words: list[str]) -> None:
    """A second and a half of torch, for a version or a page of help, is noticed each time."""
    code = (
        "import sys\n"
        "from metatkgr.cli import main\n"
        f"sys.argv = ['metatkgr', *{words}]\n"
        "try:\n    main()\n"
        "finally:\n"
        "    heavy = {'torch', 'numpy', 'pyarrow', 'pandas', 'duckdb'} & set(sys.modules)\n"
        "    print('imported:', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_evaluate_writes_the_documented_object_and_nothing_else_to_stdout(run: Run) -> None:
    shown = run("evaluate", "world:3000", "--model", "recurrency", "--shots", 2, "--json", "-")
    assert shown.code == 0, shown.err
    result = json.loads(shown.out)
    assert result["dataset"] == "world"
    assert (result["model"], result["shots"], result["seed"]) == ("recurrency", 2, 0)
    assert result["visibility"] == "entity-split"
    assert result["tasks"] > 0
    for name in ("static", "time"):
        for subset in ("all", "novel", "later"):
            metrics = result["metrics"][name][subset]
            low, high = metrics["mrr_ci95"]
            assert 0 <= low <= metrics["mrr"] <= high <= 1
            assert 0 <= metrics["hits@1"] <= metrics["hits@3"] <= metrics["hits@10"] <= 1
            assert 0 <= metrics["mrr_macro"] <= 1
    assert set(result["seconds"]) == {"load", "adapt", "score", "rank"}
    assert "recurrency on world" in shown.err


def test_evaluate_tells_how_far_off_probabilities_are(run: Run) -> None:
    shown = run("evaluate", "world:3000", "--model", "paths", "--calibration", "--json", "-")
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)["calibration"]
    assert found["fitted"]["split"].startswith("meta-validation")
    for part in ("fitted", "meta-test"):
        assert 0 < found[part]["ece"] < 0.5
        assert found[part]["queries"] > 100
    assert f"right in {found['meta-test']['correct']:.1%}" in " ".join(shown.err.split())


def test_evaluate_writes_json_to_a_file_and_a_table_to_stdout(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "new" / "result.json"
    shown = run("evaluate", "world:3000", "--json", target, "--details")
    assert shown.code == 0
    result = json.loads(target.read_text())
    assert result["model"] == "evidence"
    assert "static, all" in shown.out
    whole = result["metrics"]["static"]["all"]
    relations = result["per_relation"]["static"]
    steps = result["per_step"]["static"]
    for parts in (relations, steps):
        assert sum(part["queries"] for part in parts.values()) == whole["queries"]
        weighted = sum(part["queries"] * part["mrr"] for part in parts.values())
        assert weighted / whole["queries"] == pytest.approx(whole["mrr"])
    assert "inverse of plays for" in relations


def test_evaluate_reads_a_file_of_the_users(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    assert run("data", "simulate", "--facts", 3000, "--out", path).code == 0
    shown = run("evaluate", path, "--model", "paths", "--json", "-")
    assert shown.code == 0, shown.err
    from_file = json.loads(shown.out)
    from_world = json.loads(run("evaluate", "world:3000", "--model", "paths", "--json", "-").out)
    assert from_file["dataset"] == "events"
    for name, subsets in from_world["metrics"].items():
        for subset, metrics in subsets.items():
            found = from_file["metrics"][name][subset]
            for key in ("mrr", "hits@1", "hits@10", "mrr_macro", "share"):
                assert found[key] == pytest.approx(metrics[key])


def test_the_oracle_knows_a_world_that_was_written_to_parquet(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "world.parquet"
    run("data", "simulate", "--facts", 3000, "--seed", 4, "--out", path)
    from_file = json.loads(run("evaluate", path, "--model", "oracle", "--json", "-").out)
    again = json.loads(run("evaluate", "world:3000:4", "--model", "oracle", "--json", "-").out)
    assert from_file["metrics"]["static"]["all"]["mrr"] == pytest.approx(
        again["metrics"]["static"]["all"]["mrr"]
    )


def training_lines(text: str) -> int:
    """Lines that tell of MetaTKGR's training."""
    return len(re.findall(r"^  meta \d+/\d+: loss", text, flags=re.MULTILINE))


@pytest.mark.slow
def test_the_demo_shows_metatkgr_between_the_rules_and_the_oracle(run: Run) -> None:
    begin = time.process_time()
    shown = run("demo", "--json", "-")
    models = json.loads(shown.out)["models"]
    mrr = {name: m["metrics"]["static"]["all"]["mrr"] for name, m in models.items()}
    assert mrr["recurrency"] < mrr["paths"] < mrr["metatkgr"] < mrr["oracle"]
    assert mrr["paths"] < mrr["evidence"] < mrr["oracle"]
    assert time.process_time() - begin < 90


def test_demo_ranks_the_oracle_above_the_rules_and_tells_a_forecast(run: Run) -> None:
    shown = run("demo", "--facts", 5000, "--json", "-")
    assert shown.code == 0
    result = json.loads(shown.out)
    mrr = {name: m["metrics"]["static"]["all"]["mrr"] for name, m in result["models"].items()}
    assert mrr["oracle"] > mrr["paths"]
    assert mrr["oracle"] > mrr["recurrency"]
    assert list(mrr) == ["recurrency", "paths", "metatkgr", "evidence", "oracle"]
    assert mrr["metatkgr"] < mrr["oracle"]
    assert training_lines(shown.err) >= 1
    forecast = result["forecast"]
    assert len(forecast["support"]) == 3
    assert forecast["truth"]
    assert forecast["truth"][0] in forecast["forecasts"]["oracle"]


def test_data_list_tells_where_each_dataset_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METATKGR_DATA", str(tmp_path))
    monkeypatch.setenv("METATKGR_CACHE", str(tmp_path))
    rows = json.loads(run("data", "list", "--json", "-").out)
    assert [row["name"] for row in rows][:5] == ["YAGO", "WIKI", "ICEWS18", "ICEWS14", "world"]
    assert all(row["folder"] is None for row in rows)
    assert "metatkgr data fetch YAGO" in run("data", "list").out


def test_data_stats_counts_the_world(run: Run) -> None:
    shown = run("data", "stats", "world:3000", "--json", "-")
    result = json.loads(shown.out)
    assert result["facts"] == 3000
    assert sum(period["facts"] for period in result["periods"]) == 3000
    assert 0 < result["new_share"] < 1


def test_data_plot_draws_two_figures(run: Run, tmp_path: Path) -> None:
    shown = run("data", "plot", "world:3000", "--out", tmp_path, "--json", "-")
    files = json.loads(shown.out)["files"]
    assert len(files) == 4
    assert all(Path(file).stat().st_size > 1000 for file in files)


def test_skipped_rows_are_reported_in_a_file(run: Run, tmp_path: Path) -> None:
    path, report = tmp_path / "events.csv", tmp_path / "report.json"
    run("data", "simulate", "--facts", 3000, "--out", path)
    with path.open("a") as file:
        file.write("Somebody,plays for,Some Club,not a date\n")
    refused = run("evaluate", path)
    assert refused.code == 2
    assert "not a date" in refused.err
    assert "--skip-bad-rows" in refused.err
    shown = run("evaluate", path, "--skip-bad-rows", "--bad-rows-report", report, "--json", "-")
    assert shown.code == 0, shown.err
    assert "Skipped 1 of 3,001 rows" in shown.err
    assert json.loads(report.read_text())["rows_bad"] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["evaluate", "YAGOO"], "did you mean 'YAGO'"),
        (["evaluate", "nowhere/facts.csv"], "there is no file or folder nowhere/facts.csv"),
        (["evaluate", "world", "--model", "path"], "did you mean 'paths'"),
        (["evaluate", "world", "--visibility", "everything"], "unknown visibility"),
        (["evaluate", "world", "--split", "test"], "unknown split"),
        (["evaluate", "world", "--split", "background"], "background entities are not new"),
        (["evaluate", "world", "--set", "lr=1"], "has no field 'lr'"),
        (["evaluate", "world", "--set", "lr"], "--set takes KEY=VALUE"),
        (["evaluate", "world", "--device", "tpu"], "device"),
        (["evaluate", "world", "--header"], "header cannot be chosen for it"),
        (["evaluate", "world:12:x"], "world:FACTS:SEED"),
        (["evaluate", "world:200", "--shots", "99"], "no query at 99 shots"),
        (["data", "stats", "world:10"], "at least 200 facts"),
        (["data", "simulate", "--out", "world.xlsx"], ".parquet"),
        (["data", "fetch", "FREEBASE"], "unknown dataset"),
    ],
)
def test_a_mistake_is_told_in_one_message_with_exit_code_2(
    run: Run, words: list[str], told: str
) -> None:
    shown = run(*words)
    assert shown.code == 2
    assert shown.out == ""
    assert told in shown.err
    assert "Traceback" not in shown.err
    assert shown.err.startswith("error: ")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.csv", "", "empty"),
        ("short.csv", "subject,relation,object\na,b,c\n", "column"),
        ("folder", None, "folder"),
    ],
)
def test_files_that_hold_no_facts_are_told_in_one_sentence(
    run: Run, tmp_path: Path, name: str, content: str | None, told: str
) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    shown = run("evaluate", path)
    assert shown.code == 2
    assert told in shown.err
    assert "Traceback" not in shown.err


def test_an_unwritable_target_is_an_error_not_a_traceback(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shown = run("evaluate", "world:3000", "--json", tmp_path / "file" / "result.json")
    assert shown.code == 2
    assert "cannot write" in shown.err


def test_names_do_not_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    title, turned, marked = "a\x1b]0;owned\x07", "bank \u202eknab", "[/bold] [red]\x9b31m"
    rows = [(n, name) for n in range(60) for name in (title, turned, marked)]
    facts = tmp_path / "facts.tsv"
    facts.write_text("".join(f"{name}\tr\to{n % 7}\t{n}\n" for n, name in rows))
    words = ("predict", facts, "--entity", "o1", "--side", "subject", "--explain")
    words += ("--relation", "r", "--model", "recurrency", "--top", 3)
    shown = run(*words)
    assert shown.code == 0, shown.err
    wrong = run("predict", facts, "--entity", "bank \u202eknaB", "--model", "recurrency")
    assert wrong.code == 2
    told = run(*words, "--json", "-")
    for text in (shown.out, shown.err, wrong.err, told.out):
        assert not set(text) & set("\x1b\x07\x9b\u202e"), ascii(text)
    assert "bank \\u202eknab" in shown.out
    assert "[/bold] [red]\\u009b31m" in shown.out
    named = {forecast["entity"] for forecast in json.loads(told.out)["forecasts"]}
    assert {title, turned, marked} <= named
