"""Which answers are new: no visible fact had linked them to the asking entity by this relation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from metatkgr.data.tasks import Tasks
from metatkgr.graph.history import History

__all__ = ["novel_answers"]


def novel_answers(
    tasks: Tasks, device: torch.device | str = "cpu", chunk: int = 1 << 14
) -> npt.NDArray[np.bool_]:
    """(A,) whether no visible fact had linked the answer to e by r in this direction yet."""
    history = History(tasks.visible, tasks.supports, device)
    entities = len(tasks.facts.entities)
    novel = np.empty(len(tasks.answers), bool)
    for begin in range(0, len(tasks.questions), chunk):
        links = history.last_links(tasks.questions[begin : begin + chunk])
        linked = (links.question * entities + links.candidate).cpu().numpy()
        low, high = np.searchsorted(tasks.answers.question, [begin, begin + chunk])
        rows = slice(int(low), int(high))
        asked = (tasks.answers.question[rows] - begin) * entities + tasks.answers.answer[rows]
        novel[rows] = ~np.isin(asked, linked)
    return novel
