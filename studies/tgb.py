"""Do our ranks equal those of py-tgb's ``Evaluator``, query by query, on a rebuilt ``tkgl-yago``?

``python -m studies.tgb`` cuts the bundled YAGO as TGB 2.0 does, has py-tgb generate its negative
sets and sample all negatives of every test query from them, gives the scores of our models to its
``Evaluator`` and counts the queries on which its reciprocal rank is another than ours. It writes
``results/tgb.json``. It needs py-tgb, which this package does not:

``pip install --no-deps py-tgb clint args`` (its other dependencies come with the extra ``dev``)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metatkgr.data.extrapolation import Extrapolation
from metatkgr.data.facts import Facts
from metatkgr.data.sources import load
from metatkgr.data.visibility import directed
from metatkgr.errors import DataError, MetaTKGRError, need
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.evaluation.tgb import tgb_queries
from metatkgr.experiments.cell_run import commit
from metatkgr.files import read_json, write_json
from metatkgr.models.base import Model
from studies.extrapolation import CHOSEN, DATASETS, ROWS, best_settings, opened
from studies.extrapolation import RESULTS as TRIED

__all__ = ["agreement", "main", "sampler_of"]

NAME = "tkgl-yago"
RESULTS = Path("results/tgb.json")


def sampler_of(tasks: Extrapolation, folder: Path) -> Any:
    """py-tgb's sampler of negatives, over sets that its own generator makes from the test edges."""
    generating = need("tgb.linkproppred.tkg_negative_generator")
    sampling = need("tgb.linkproppred.tkg_negative_sampler")
    facts: Facts = tasks.facts
    rows = np.flatnonzero(facts.time >= tasks.questions.time.min())
    source, relation, target, step = map(torch.from_numpy, directed(facts.select(rows)))
    edges = need("torch_geometric.data").TemporalData(
        src=source, dst=target, t=step, edge_type=relation
    )
    last = len(facts.entities) - 1
    words = {"first_dst_id": 0, "last_dst_id": last, "strategy": "time-filtered"}
    generator = generating.TKGNegativeEdgeGenerator(NAME, edge_data=edges, **words)
    generator.generate_negative_samples(edges, "test", str(folder))
    sampler = sampling.TKGNegativeEdgeSampler(NAME, **words)
    sampler.load_eval_set(str(folder / f"{NAME}_test_ns.pkl"), "test")
    return sampler


def agreement(model: Model[Any], tasks: Extrapolation, sampler: Any) -> dict[str, Any]:
    """How many queries are ranked alike, and the mean reciprocal ranks of both evaluators."""
    evaluator = need("tgb.linkproppred.evaluate").Evaluator(NAME)
    # As theirs: in single precision, in which every rank that can occur is exact.
    ours = np.float32(1) / evaluate(model, tasks).ranks["time"].astype(np.float32)
    theirs, other_negatives = np.empty(len(ours), np.float32), 0
    for query in tgb_queries(model, tasks):
        edge = (query.entity, query.answer, query.time, query.relation)
        (negatives,) = sampler.query_batch(*(np.array([value]) for value in edge), "test")
        other_negatives += not np.array_equal(negatives, query.negatives)
        theirs[query.row] = evaluator.eval(query.inputs)["mrr"]
    return {
        "queries": len(ours),
        "mrr": float(ours.mean(dtype=np.float64)),
        "mrr_of_py_tgb": float(theirs.mean(dtype=np.float64)),
        "queries_that_differ": int((ours != theirs).sum()),
        "queries_with_other_negatives": other_negatives,
        "commit": commit(),
    }


def main(arguments: Sequence[str]) -> str:
    """Compare what the file does not hold yet; returns a table."""
    parser = argparse.ArgumentParser(prog="python -m studies.tgb")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--questions", type=int, help="at most so many, drawn evenly; else all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file; added to")
    words = parser.parse_args(arguments)
    if find_spec("tgb") is None:
        raise DataError("this needs py-tgb: pip install --no-deps py-tgb clint args")
    content: dict[str, Any] = {"dataset": NAME, "rows": {}}
    if words.out.exists():
        content = read_json(words.out)
    dataset = DATASETS[NAME]
    facts = load(dataset.facts)
    tasks = Extrapolation.build(facts, split=dataset.split)
    all_queries = len(tasks.answers)
    asked = tasks if words.questions is None else tasks.sample(words.questions)
    content |= {"py-tgb": version("py-tgb"), "command": "python -m studies.tgb"}
    best = best_settings(read_json(TRIED), NAME) if TRIED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        sampler = sampler_of(tasks, Path(folder))
        for row in words.rows:
            settings = best if row == CHOSEN else {}
            if row not in content["rows"] and (row != CHOSEN or settings):
                found = agreement(opened(row, facts, dataset, settings), asked, sampler)
                found["queries_of_split"] = all_queries
                content["rows"][row] = found
                write_json(words.out, content)
                print(row, found, flush=True)
    lines = ["| | queries | MRR | differ |", "|---|---|---|---|"]
    for row, found in content["rows"].items():
        counts = f"{found['queries']:,} | {found['mrr']:.4f} | {found['queries_that_differ']}"
        lines.append(f"| {row} | {counts} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        print(main(sys.argv[1:]))
    except MetaTKGRError as error:
        sys.exit(f"error: {error}")
