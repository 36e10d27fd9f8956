"""The kinds of evidence, and the numbers that each is read as.

Ages and counts are in ``log(1 + ·)``, shares of walks in ``log(· + 10⁻⁶)``.
"""

from __future__ import annotations

__all__ = ["DECAYS", "FEATURES", "OF_KIND"]

FEATURES = (
    "link",  # e and x were linked by r
    "link_age",  # how long ago, the last time
    "link_count",  # how often
    "contact",  # they were linked at all
    "contact_age",  # how long ago, the last time
    "transfer",  # how often a link as theirs goes with one by r: log of the share
    "place_count",  # how often x stood in this place of r
    "place_recent",  # the same, a fact τ steps old counting 1/e; τ = 2,
    "place_season",  # 10
    "place_era",  # and 50
    "place_age",  # how long ago x last stood there
    "place",  # whether x ever did
    "age",  # since when x is known
    "idle",  # how long ago x was last seen
    "degree",  # how many others x was linked to
    "cohort",  # how far apart e and x appeared
    "walks",  # number of walks e -r-> y <-r- z -r-> x
    "near",  # share of PageRank within 3 steps
    "far",  # share of PageRank within 12 steps
    "far_place",  # the same where x stood in this place or was linked to e, else 10⁻⁷
    "peers",  # share of walks e -q-> y <-q- z -r-> x: what those who share a fact with e answered
    "peers_timed",  # the same, where links lie close in time
    "likes",  # share of walks e -r-> y -q-> w <-q- x: x shares a fact with an earlier answer of e
    "likes_timed",  # the same, where links lie close in time
    "similar",  # log-softmax of the translation score
    "knows",  # of e: how many visible facts
    "linked",  # of e: whether it has any link by r
    "linked_age",  # of e: how long ago the last one was
)
"""What each column is; a change of order or number makes trained weights worthless."""

OF_KIND = {
    "contact": ("contact", "contact_age", "transfer"),
    "walks": ("walks", "near", "far", "far_place"),
    "peers": ("peers", "peers_timed", "likes", "likes_timed"),
    "frequency": ("place_count", "place_recent", "place_season", "place_era", "place_age"),
    "age": ("age", "idle", "cohort"),
}
"""Columns that go when a kind of evidence is left out."""
DECAYS = (2.0, 10.0, 50.0)
"""τ of the decayed counts."""
