"""Simulated worlds of several kinds, whose law is known.

``kinds`` describes them, ``simulation`` makes their facts and writes worlds larger than memory,
``step`` and ``ties`` say exactly what happens in one step and how likely it is, ``law`` answers
queries with these chances.
"""

from metatkgr.data.world.kinds import KINDS
from metatkgr.data.world.law import Law
from metatkgr.data.world.plan import WorldSettings
from metatkgr.data.world.simulation import narrate, simulate

__all__ = ["KINDS", "Law", "WorldSettings", "narrate", "simulate"]
