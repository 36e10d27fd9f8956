"""A simulated world of leagues, clubs, players and sponsors, whose law is known.

For demonstrations and tests. Ties recur (a contract is reported again and again), players follow
old team-mates and sponsors spread within a league (shared neighbours), ``endorses`` becomes common
only late (the time shift), newcomers appear at every step, most with few facts, and some facts
cannot be predicted at all. ``world.step`` says exactly what happens, ``world.law`` how likely.

One step is a week; its date is a Monday.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import numpy as np

from metatkgr.data.calendar import date_to_raw
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.world.law import Law
from metatkgr.data.world.names import names_of
from metatkgr.data.world.plan import RELATIONS, Plan, WorldSettings
from metatkgr.data.world.state import Streams, World
from metatkgr.data.world.step import StepFacts, advance

__all__ = ["FIRST_DAY", "STEP_DAYS", "Law", "WorldSettings", "narrate", "simulate"]

FIRST_DAY = date_to_raw(dt.date(2015, 1, 5), "day")
"""Raw day of step 0, a Monday."""
STEP_DAYS = 7


def narrate(settings: WorldSettings, streams: Streams | None = None) -> Iterator[StepFacts]:
    """The facts of the world step by step, exactly ``settings.facts`` in all.

    The last step is cut to what is left: introductions first, then any facts with equal chance.

    Args:
        settings: of the world.
        streams: the randomness of each step, where it is not that of the settings.
    """
    world = World(Plan.of(settings), streams)
    left = settings.facts
    while left > 0:
        facts = advance(world)
        if len(facts) > left:
            facts = facts.take(left, world.streams(world.step - 1).spawn(1)[0])
        left -= len(facts)
        yield facts


def simulate(
    settings: WorldSettings | None = None, *, facts: int | None = None, seed: int | None = None
) -> Facts:
    """A simulated world as facts, with its law.

    Args:
        settings: of the world; or, for the usual ones,
        facts: number of facts,
        seed: seed of all randomness.

    Returns:
        Facts called 'world' whose ``law`` is a :class:`Law`; entities numbered by birth.
    """
    if settings is None:
        given = {"facts": facts, "seed": seed}
        settings = WorldSettings(**{k: v for k, v in given.items() if v is not None})
    elif facts is not None or seed is not None:
        raise TypeError("give simulate() either settings, or facts and seed")
    steps = list(narrate(settings))
    subject = np.concatenate([step.subject for step in steps])
    object_ = np.concatenate([step.object for step in steps])
    step = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    entities = int(max(subject.max(), object_.max())) + 1
    kind, number = Plan.of(settings).numbering(-1, len(steps) - 1)
    names = names_of(kind[:entities], number[:entities])
    return Facts.build(
        subject,
        np.concatenate([step.relation for step in steps]),
        object_,
        FIRST_DAY + STEP_DAYS * step,
        entities=Vocabulary(names.tolist()),
        relations=Vocabulary(RELATIONS),
        unit="day",
        name="world",
        law=Law(settings, entities, last_step=len(steps) - 1),
    )
