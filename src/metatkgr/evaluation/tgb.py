"""Ways out to TGB 2.0: facts as its edge list, its negative sets, scores for its ``Evaluator``.

Nothing of py-tgb is imported here, and no pickle is read. The way in is ``read_facts``, which knows
the header of its edge lists; its split is ``Extrapolation.build(facts, split=TGB_SHARES)``.
"""

from __future__ import annotations

import csv
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metatkgr.data.answers import true_answers
from metatkgr.data.extrapolation import TGB_SHARES, Extrapolation, first_steps
from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.visibility import VisibleFacts, directed
from metatkgr.files import atomic_path
from metatkgr.models.base import Model
from metatkgr.models.common.listed import ListedScores

__all__ = ["HEADER", "TGBQuery", "negative_sets", "tgb_queries", "write_tgb"]

HEADER = ("timestamp", "head", "tail", "relation_type")
"""Of an edge list."""
_ROWS = 256
"""Questions whose scores of all entities are held at once."""


class TGBQuery(NamedTuple):
    """A positive edge, its negatives, and the scores of a model."""

    row: int
    """Of the tasks' answers."""
    entity: int
    relation: int
    """Directed: from R on, the inverse ones, as TGB numbers them too."""
    time: int
    """The step."""
    answer: int
    negatives: IntArray
    """(N,) all entities that are no answer at the time, ascending."""
    positive_score: npt.NDArray[Any]
    """(1,)."""
    negative_scores: npt.NDArray[Any]
    """(N,)."""

    @property
    def inputs(self) -> dict[str, Any]:
        """What ``Evaluator(name).eval`` takes."""
        return {
            "y_pred_pos": self.positive_score,
            "y_pred_neg": self.negative_scores[None],
            "eval_metric": ["mrr"],
        }


def tgb_queries(model: Model[Any], tasks: Extrapolation) -> Iterator[TGBQuery]:
    """Each query of ``tasks`` as TGB asks it, scored by a model; by relation and time.

    Args:
        model: with its weights, if it has any; ``prepare`` is called with what ``tasks`` show.
        tasks: of valid or test.
    """
    model.prepare(tasks.visible).adapt(tasks.supports)
    entities = np.arange(len(tasks.facts.entities))
    asked, answers = tasks.questions, tasks.answers
    true = true_answers(VisibleFacts.of(tasks.facts), asked, "time")
    start, stop, known = true.start.numpy(), true.stop.numpy(), true.entity.numpy()
    # Queries of one slot and time share most of their scores.
    order = np.lexsort((asked.time, asked.relation))
    for begin in range(0, len(asked), _ROWS):
        questions = order[begin : begin + _ROWS]
        listed = model.score(asked[questions])
        dense = listed.dense() if isinstance(listed, ListedScores) else listed
        scores = dense.detach().cpu().numpy()
        for place, question in enumerate(questions.tolist()):
            negatives = np.delete(entities, known[start[question] : stop[question]])
            low, high = np.searchsorted(answers.question, [question, question + 1])
            for row in range(int(low), int(high)):
                answer = int(answers.answer[row])
                yield TGBQuery(
                    row,
                    int(asked.entity[question]),
                    int(asked.relation[question]),
                    int(asked.time[question]),
                    answer,
                    negatives,
                    scores[place, [answer]],
                    scores[place, negatives],
                )


def negative_sets(
    facts: Facts, split: tuple[float, float] = TGB_SHARES
) -> dict[str, dict[tuple[int, int, int], IntArray]]:
    """What TGB calls negative sets of 'val' and 'test': the answers that are *not* negatives.

    By (raw time, entity, directed relation), the entities that are answers then; its
    ``TKGNegativeEdgeSampler`` takes all others. Ids are those of the facts.
    """
    valid, test = first_steps(facts, split)
    found = {}
    for name, begin, end in (("val", valid, test), ("test", test, facts.steps)):
        rows = np.flatnonzero((facts.time >= begin) & (facts.time < end))
        source, relation, target, time = directed(facts.select(rows))
        order = np.lexsort((target, relation, source, time))
        key = np.stack([_raw(facts, time), source, relation], 1)[order].astype(np.int64)
        answer = target[order].astype(np.int64)
        new = np.ones(len(key), bool)
        new[1:] = (key[1:] != key[:-1]).any(1)
        parts = np.split(answer, np.flatnonzero(new)[1:])
        keys = zip(*key[new].T.tolist(), strict=True)
        found[name] = {
            (t, s, r): np.unique(part) for (t, s, r), part in zip(keys, parts, strict=True)
        }
    return found


def write_tgb(
    facts: Facts,
    folder: str | Path,
    name: str = "tkgl-own",
    *,
    split: tuple[float, float] = TGB_SHARES,
) -> list[Path]:
    """Write facts as a dataset of TGB 2.0.

    Entities are numbered in the order in which they appear, as TGB numbers them anew when it reads
    an edge list: its ids are then those of the files. Times are the raw ones of the calendar.

    Args:
        facts: the whole graph.
        folder: is made where it is not there.
        name: of the dataset; the files begin with it.
        split: the shares of train and valid among the facts.

    Returns:
        The edge list; the negative sets of valid and test, pickled for TGB, which reads nothing
        else; and the names of entities and of relations by their numbers.
    """
    ends = np.stack([np.asarray(facts.subject), np.asarray(facts.object)], 1)
    used, first = np.unique(ends, return_index=True)
    entities = used[np.argsort(first)]
    number = np.zeros(len(facts.entities), np.int64)
    number[entities] = np.arange(len(entities))
    relations, relation = np.unique(facts.relation, return_inverse=True)
    columns = (_raw(facts, facts.time), number[ends[:, 0]], number[ends[:, 1]], relation)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    edges = folder / f"{name}_edgelist.csv"
    _write_rows(edges, HEADER, zip(*(column.tolist() for column in columns), strict=True))
    written = [edges]
    for part, sets in negative_sets(facts, split).items():
        renamed = {
            (t, int(number[s]), _directed(r, relations, len(facts.relations))): number[answers]
            for (t, s, r), answers in sets.items()
        }
        written.append(folder / f"{name}_{part}_ns.pkl")
        with atomic_path(written[-1]) as temporary, temporary.open("wb") as file:
            pickle.dump(renamed, file)
    for kind, names, ids in (
        ("entities", facts.entities, entities),
        ("relations", facts.relations, relations),
    ):
        written.append(folder / f"{name}_{kind}.csv")
        _write_rows(written[-1], ("id", "name"), ((i, names[id]) for i, id in enumerate(ids)))
    return written


def _directed(relation: int, used: npt.NDArray[Any], relations: int) -> int:
    """The number of a directed relation among those that occur."""
    inverse, plain = divmod(relation, relations)
    return int(np.searchsorted(used, plain)) + inverse * len(used)


def _raw(facts: Facts, steps: Any) -> IntArray:
    """Times as the file had them."""
    return facts.calendar.origin + np.asarray(steps, np.int64) * facts.calendar.stride


def _write_rows(path: Path, header: tuple[str, ...], rows: Any) -> None:
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
