"""The field's standard protocol on the datasets of its papers: rules, baselines and ``evidence``.

``python -m studies.extrapolation`` computes what ``results/extrapolation.json`` does not hold yet,
row by row, and writes the file after each. Both directions, all entities; every model with weights
learns from train only, and where it validates, valid selects them. ``--history multi-step`` asks
about test knowing nothing of it. ``--questions N`` ranks a draw of N questions where all of them
take too long; the record says so. ``--add FILE…`` takes over rows that were computed elsewhere.
``--reached`` counts which answers of valid ``evidence`` has among its candidates at all.

``python -m studies.extrapolation --choose NAME`` tries the settings of ``TRIED`` on a draw of the
questions of *valid*; test is not looked at. The last row takes those that did best there, on
datasets where some were tried and others than those of the preset did best.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from metatkgr.data.answers import novel_answers
from metatkgr.data.extrapolation import HISTORIES, TGB_SHARES, Extrapolation
from metatkgr.data.facts import Facts
from metatkgr.data.sources import load
from metatkgr.errors import MetaTKGRError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.experiments.cell_run import commit, hardware
from metatkgr.files import read_json, write_json
from metatkgr.models import create
from metatkgr.models.base import Model
from metatkgr.models.common.listed import ListedScores
from metatkgr.models.evidence.model import EvidenceModel
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.registry import available, choose_device
from metatkgr.settings import parse_settings
from metatkgr.training.opening import open_extrapolation

__all__ = [
    "CHOSEN",
    "DATASETS",
    "ROWS",
    "TRIED",
    "Dataset",
    "best_settings",
    "chosen",
    "main",
    "measured",
    "opened",
]

BoolArray = npt.NDArray[np.bool_]
RESULTS = Path("results/extrapolation.json")
_LISTED = 2000
RULES = ("recurrency", "paths", "pagerank")
BASELINES = ("renet, trained on train", "regcn, trained on train")
AUTHORS = tuple(f"{row} with its authors' settings" for row in BASELINES)
PRETRAINED, TRAINED = "evidence, pretrained on other graphs", "evidence, trained on train"
CHOSEN = "evidence, trained on train with the settings that did best on valid"
ROWS = (*RULES, *BASELINES, *AUTHORS, PRETRAINED, TRAINED, CHOSEN)
TRIED: tuple[Mapping[str, Any], ...] = (
    {},
    {"shrinkage": 0.003},
    {"repeats_first": True},
    {"start": "pretrained"},
    {"train_queries": 20_000, "epochs": 8},
    {"prior": 0.0},
)
"""Settings that were tried on valid, beside those of the preset 'extrapolation'."""


class Dataset(NamedTuple):
    """A dataset of the catalogue, and how it is cut."""

    facts: str
    split: tuple[float, float]
    """The first steps of valid and test, as the published files have them; or shares."""


DATASETS = {
    "ICEWS14": Dataset("ICEWS14", (304, 334)),
    "ICEWS18": Dataset("ICEWS18", (240, 270)),
    "YAGO": Dataset("YAGO", (178, 183)),
    "WIKI": Dataset("WIKI", (211, 222)),
    "tkgl-yago": Dataset("YAGO", TGB_SHARES),
}


def opened(
    row: str,
    facts: Facts,
    dataset: Dataset,
    settings: Mapping[str, Any],
    *,
    history: str = HISTORIES[0],
    device: str = "cpu",
) -> Model[Any]:
    """The model of a row, with its weights."""
    if row in RULES:
        return create(row)
    if row == PRETRAINED:
        model = EvidenceModel()
        model.load_pretrained(facts)
        return model
    name = row.partition(",")[0]
    if row in AUTHORS:
        settings = {**available()[name].presets["paper"], **settings}
    words: dict[str, Any] = {"model": name, "settings": settings}
    words |= {"history": history, "device": device}
    return open_extrapolation(facts, split=dataset.split, **words).model


def listed(model: Model[Any], tasks: Extrapolation, which: BoolArray) -> float | None:
    """The share of some answers that something speaks for; None: the model scores everybody.

    Asks a prepared model about a draw of the questions, a few thousand at most.
    """
    count, entities = len(tasks.questions), len(tasks.facts.entities)
    asked = np.unique(np.linspace(0, count - 1, _LISTED).astype(np.int64))
    place = np.full(count, -1)
    place[asked] = np.arange(len(asked))
    rows = np.flatnonzero(which & (place[tasks.answers.question] >= 0))
    scores = model.score(tasks.questions[asked])
    if not isinstance(scores, ListedScores) or not len(rows):
        return None
    known = (scores.query * entities + scores.entity).cpu().numpy()
    cells = place[tasks.answers.question[rows]] * entities + tasks.answers.answer[rows]
    return float(np.isin(cells, known).mean())


def reached(name: str) -> dict[str, float | None]:
    """Of the answers of valid, the shares that are candidates of ``evidence`` trained for this.

    Whom it lists does not depend on its weights, so none are learned.
    """
    dataset = DATASETS[name]
    facts = load(dataset.facts)
    tasks = Extrapolation.build(facts, split=dataset.split, part="valid").sample(_LISTED)
    model = EvidenceModel(parse_settings(EvidenceSettings, EvidenceModel.presets["extrapolation"]))
    model.build(len(facts.entities), len(facts.relations), torch.Generator().manual_seed(0))
    model.prepare(tasks.visible).adapt(tasks.supports)
    novel = novel_answers(tasks)
    shares = {"novel": listed(model, tasks, novel), "repeated": listed(model, tasks, ~novel)}
    return shares | {"answers": len(tasks.answers)}


def measured(
    row: str,
    name: str,
    *,
    part: str = "test",
    history: str = HISTORIES[0],
    questions: int | None = None,
    settings: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """One row on one dataset, filter 'time'; of the filter 'static' the MRR.

    Args:
        row: of ``ROWS``.
        name: of ``DATASETS``.
        part: 'valid' or 'test'.
        history: 'single-step' or 'multi-step'.
        questions: at most so many are ranked, drawn evenly; None: all.
        settings: of the model, over those of its preset.
        facts: of the dataset, where they are loaded already.
        device: of what has weights.
    """
    dataset = DATASETS[name]
    facts = facts or load(dataset.facts)
    begin = time.perf_counter()
    model = opened(row, facts, dataset, settings or {}, history=history, device=device)
    learned = time.perf_counter()
    tasks = Extrapolation.build(facts, split=dataset.split, part=part, history=history)
    of_part = len(tasks.answers)
    if questions is not None and questions < len(tasks.questions):
        tasks = tasks.sample(questions)
    found = evaluate(model, tasks)
    summary, novel = (found.summary("time", kind) for kind in ("all", "novel"))
    return {
        "mrr": summary.mrr,
        **{f"hits@{k}": value for k, value in summary.hits.items()},
        "mrr_ci95": summary.mrr_ci95,
        "mrr_novel": novel.mrr,
        "mrr_static": found.summary("static", "all").mrr,
        "novel": float(found.novel.mean()),
        "novel_listed": listed(model, tasks, found.novel),
        "queries": len(tasks.answers),
        "queries_of_split": of_part,
        "settings": dict(settings or {}),
        "device": hardware(str(model.device)),
        "seconds": {
            "learn": round(learned - begin, 1),
            "rank": round(time.perf_counter() - learned, 1),
        },
        "commit": commit(),
    }


def best_settings(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Those that did best on valid; none: those of the preset, or nothing was tried."""
    tried = content["valid"].get(name, {})
    if not tried:
        return {}
    return dict(max(tried.values(), key=lambda cell: float(cell["mrr"]))["settings"])


def chosen(content: Mapping[str, Any], name: str) -> str:
    """The settings tried on valid of a dataset, in Markdown, the best first."""
    tried = sorted(content["valid"][name].items(), key=lambda item: -item[1]["mrr"])
    lines = ["| settings | MRR on valid | queries |", "|---|---|---|"]
    return "\n".join(lines + [f"| {k} | {v['mrr']:.4f} | {v['queries']:,} |" for k, v in tried])


def main(arguments: Sequence[str]) -> str:
    """Compute what is missing; returns what to print."""
    parser = argparse.ArgumentParser(prog="python -m studies.extrapolation")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--questions", type=int, help="of each dataset, at most; else all")
    parser.add_argument("--history", default=HISTORIES[0], choices=HISTORIES)
    parser.add_argument("--device", default="cpu", help="of what has weights: cpu, cuda or auto")
    parser.add_argument("--choose", choices=list(DATASETS), help="try settings on its valid part")
    parser.add_argument("--reached", action="store_true", help="whom evidence lists, on valid")
    parser.add_argument("--add", nargs="+", type=Path, help="files whose rows are taken over")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file; added to")
    words = parser.parse_args(arguments)
    words.device = choose_device(words.device)
    content = read_json(words.out) if words.out.exists() else {"test": {}, "valid": {}}
    if words.add:
        for path in words.add:
            for part, datasets in read_json(path).items():
                for name, cells in datasets.items():
                    cells = content.setdefault(part, {}).get(name, {}) | cells
                    order = sorted(cells, key=lambda row: ROWS.index(row) if row in ROWS else 0)
                    content[part][name] = {row: cells[row] for row in order}
        write_json(words.out, content)
        return "added"
    if words.reached:
        shares = content.setdefault("reached", {})
        shares |= {name: reached(name) for name in words.datasets if name not in shares}
        write_json(words.out, content)
        return str(shares)
    if words.choose:
        cells = content["valid"].setdefault(words.choose, {})
        for settings in TRIED:
            label = ", ".join(f"{k}={v}" for k, v in settings.items()) or "preset"
            if label not in cells:
                more: dict[str, Any] = {"questions": words.questions, "settings": settings}
                more |= {"part": "valid", "device": words.device}
                cells[label] = measured(TRAINED, words.choose, **more)
                write_json(words.out, content)
                print(words.choose, label, f"{cells[label]['mrr']:.4f}", flush=True)
        return chosen(content, words.choose)
    for name in words.datasets:
        kept = content.setdefault("test" if words.history == HISTORIES[0] else words.history, {})
        cells, facts = kept.setdefault(name, {}), None
        tried = content if name in content["valid"] or not RESULTS.exists() else read_json(RESULTS)
        best = best_settings(tried, name)
        for row in words.rows:
            settings = best if row == CHOSEN else {}
            if row not in cells and (row != CHOSEN or settings):
                facts = facts or load(DATASETS[name].facts)
                more = {"questions": words.questions, "settings": settings}
                more |= {"history": words.history, "device": words.device}
                cells[row] = measured(row, name, facts=facts, **more)
                write_json(words.out, content)
                print(name, row, f"{cells[row]['mrr']:.4f}", cells[row]["seconds"], flush=True)
    return "done"


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        print(main(sys.argv[1:]))
    except MetaTKGRError as error:
        sys.exit(f"error: {error}")
