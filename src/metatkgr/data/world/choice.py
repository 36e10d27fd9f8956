"""With whom a subject starts a tie (see ``kinds``): drawn, and how likely."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from metatkgr.data.facts import IntArray
from metatkgr.data.world.kinds import Kind, Tie
from metatkgr.data.world.state import FloatArray

if TYPE_CHECKING:
    from metatkgr.data.world.ties import Ties

__all__ = ["Path", "Step", "choice", "choose", "count", "paths_of"]


class Step(NamedTuple):
    """One step of a path: from one end of a tie to the other."""

    tie: int
    inverse: bool
    goal: int
    """Type of who is reached."""


Path = tuple[Step, ...]


def paths_of(kind: Kind, tie: Tie) -> tuple[tuple[Path, float], ...]:
    """The paths of a tie with their shares.

    Raises:
        ValueError: a path does not lead from the tie's subjects to its objects.
    """
    ties = {other.starts: at for at, other in enumerate(kind.ties)}
    number = {type_.name: at for at, type_ in enumerate(kind.types)}
    paths = []
    for text, share in tie.follow:
        here, steps = tie.subject, []
        for word in text.split(" > "):
            name, inverse = word.removeprefix("~"), word.startswith("~")
            over = kind.ties[ties[name]]
            begin, goal = (over.object, over.subject) if inverse else (over.subject, over.object)
            if begin != here:
                raise ValueError(f"the path {text!r} of {tie.starts!r} breaks at {word!r}")
            here = goal
            steps.append(Step(ties[name], inverse, number[goal]))
        if here != tie.object:
            raise ValueError(f"the path {text!r} of {tie.starts!r} leads to a {here}")
        paths.append((tuple(steps), share))
    return tuple(paths)


def choose(world: Ties, j: int, actors: IntArray, rng: np.random.Generator) -> IntArray:
    """(N,) with whom each of the ``actors`` starts a tie; itself: with nobody."""
    tie, (subject, other) = world.plan.kind.ties[j], world.ends[j]
    source = rng.random(len(actors))
    chosen = np.full(len(actors), -1)
    low = 0.0
    for path, share in world.paths[j]:
        rows = np.flatnonzero((source >= low) & (source < low + share))
        chosen[rows] = _walk(world, path, subject, actors[rows], rng)
        low += share
    rows = np.flatnonzero((source >= low) & (source < low + tie.popular))
    anybody = rng.choice(np.flatnonzero(world.alive[subject]), len(rows))
    chosen[rows] = world.kept(j)[anybody, rng.integers(tie.keeps, size=len(rows))]
    alone = np.flatnonzero((chosen < 0) | ((chosen == actors) & (subject == other)))
    living = np.flatnonzero(world.alive[other])
    living = living[np.argsort(world.community[other][living], kind="stable")]
    size = np.bincount(world.community[other][living], minlength=world.plan.kind.communities)
    own = world.community[subject][actors[alone]]
    near = (rng.random(len(alone)) < tie.community) & (size[own] > 0)
    start = np.where(near, (np.cumsum(size) - size)[own], 0)
    room = np.where(near, size[own], len(living))
    chosen[alone] = living[start + (rng.random(len(alone)) * room).astype(np.int64)]
    return chosen


def choice(world: Ties, j: int, subjects: IntArray, objects: IntArray) -> FloatArray:
    """(S, O) chance of each object to be chosen by each subject that starts a tie.

    q(o) = sum of p n(o) / N + a (c [same community] / its size + (1 - c) / all), where of the
    N walks along a path (or of all places for kept ties: popularity) of share p n(o) lead to o;
    what leads nowhere, or back, is added to a, the share of those who choose alone.
    """
    tie, (subject, other) = world.plan.kind.ties[j], world.ends[j]
    total = len(world.id[other])
    out = np.zeros((len(subjects), len(objects)))
    alone = np.ones(len(subjects))
    for path, share in world.paths[j]:
        goals = _walks(world, path, subject, subjects)
        out += share / goals.shape[1] * count(goals, objects, total)
        alone -= share / goals.shape[1] * (goals >= 0).sum(axis=1)
    kept = world.kept(j)[world.alive[subject]]
    popularity = np.bincount(kept[kept >= 0], minlength=total) * (tie.popular / kept.size)
    out += popularity[objects]
    alone -= popularity.sum()
    if subject == other:
        alone += popularity[subjects]
    alive = world.alive[other]
    size = np.bincount(world.community[other][alive], minlength=world.plan.kind.communities)
    own = world.community[subject][subjects]
    near = np.where(size[own] > 0, tie.community, 0.0)[:, None]
    same = own[:, None] == world.community[other][objects]
    out += alone[:, None] * (
        near * same / np.maximum(size[own], 1)[:, None] + (1 - near) / alive.sum()
    )
    if subject == other:
        out *= subjects[:, None] != objects
    return out


def _walk(
    world: Ties, path: Path, begin: int, actors: IntArray, rng: np.random.Generator
) -> IntArray:
    """(N,) where one walk along a path leads each actor; -1: nowhere, or back to itworld."""
    here = actors
    for step in path:
        memory = world.memory(step)
        there = memory[here, rng.integers(memory.shape[1], size=len(here))]
        here = np.where((here < 0) | ((there == actors) & (step.goal == begin)), -1, there)
    return here


def _walks(world: Ties, path: Path, begin: int, subjects: IntArray) -> IntArray:
    """(S, N) where all walks lead, each as likely as any other; -1 as above."""
    here = subjects[:, None]
    for step in path:
        there = world.memory(step)[here]
        lost = (here < 0)[..., None]
        lost = lost | ((there == subjects[:, None, None]) & (step.goal == begin))
        here = np.where(lost, -1, there).reshape(len(subjects), -1)
    return here


def count(goals: IntArray, objects: IntArray, total: int) -> IntArray:
    """(S, O) how often each object is among the (S, N) ``goals``."""
    # Others and -1 (the last entry) are counted in one column too many.
    column = np.full(total + 1, len(objects))
    column[objects] = np.arange(len(objects))
    width = len(objects) + 1
    cell = np.arange(len(goals))[:, None] * width + column[goals]
    times = np.bincount(cell.reshape(-1), minlength=len(goals) * width)
    return times.reshape(len(goals), width)[:, :-1]
