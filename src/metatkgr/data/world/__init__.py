"""A simulated world of leagues, clubs, players and sponsors, whose law is known.

``simulation`` makes its facts, ``step`` says exactly what happens in one step, ``law`` how likely
it is, ``file`` writes worlds larger than memory.
"""

from metatkgr.data.world.law import Law
from metatkgr.data.world.plan import WorldSettings
from metatkgr.data.world.simulation import narrate, simulate

__all__ = ["Law", "WorldSettings", "narrate", "simulate"]
