"""Readable, invented, unique names for the entities of the simulated world.

A name is composed of syllables and depends only on the entity's type and its number within that
type, so that it can be written again from the numbers alone. Every syllable but the last of a word
has a fixed length within its set, hence two different choices never spell the same word.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import IntArray
from metatkgr.data.world.kinds import EntityType

__all__ = ["entity_names", "names_of"]

Names = npt.NDArray[np.str_]


def _set(text: str) -> Names:
    return np.array(text.split())


_GIVEN = _set("Ta Be Jo Mi Lu Ra Ke No Fi Du Sa Vo Pe Ha Ci Zo Ga We Ny Li Re Bo Mo Si")
_GIVEN_END = _set(
    "rn lan vik ro sk ndo mir len gan to ri dek von sse lio bran ta nia rel lva mon dra kin zu"
)
_FAMILY = _set(
    "Vel Ost Bar Kor Dan Fel Gor Hol Irm Jas Kel Lom Mar Nor Pal Pet "
    "Ros Sel Tor Urb Vas Wel Yar Zel Bor Cal Dur Fin Gil Hal Lun Sim"
)
_MIDDLE = _set("er am an el or in ul ov as en ar is on et al um ev ir ad os un ic ag em")
_FAMILY_END = _set(
    "mark berg dahl ski quist wick ford ley gaard stein man ton well hart rup sen "
    "ano etti escu ovic oro ine aux ado ez off ayev idis ini ola ani eira"
)
_PLACE = _set(
    "Osm Tam Gal Win Cas Mor Sum Ber Ald Nib Pon Lav Rud Sav Cor Dun "
    "Eck Fas Gud Hel Ing Kov Lin Mel Nav Ork Per Ruh San Tul Ulm Vir"
)
_PLACE_END = _set(
    "mark stad burg field haven ville port grad mouth bridge dorf heim "
    "minster wald holm ridge vale court marsh ness brook cliff moor gate"
)
_FIRM = _set(
    "Nor Bel Vex Lum Cal Dor Syn Ter Arc Hex Orb Pol Ket Ris Sol Tan "
    "Umb Ven Wav Xen Yul Zep Alt Bar Cir Del Ech Fer Gal Hyp Ign Jov"
)
_FIRM_END = _set("vane cor tech line max dyne sys lux tron gen form ware plex nova core mont")
_SECTOR = _set(
    "Energy Holdings Motors Foods Insurance Air Telecom Bank Brewing Logistics Games Steel"
)


def _digits(number: IntArray, sizes: list[int]) -> tuple[list[IntArray], IntArray]:
    """Spread numbers over the combinations of ``sizes`` so that neighbours look different.

    Args:
        number: (N,) numbers from 0.
        sizes: how many choices each part of a name has.

    Returns:
        One (N,) choice per part, and (N,) how often all combinations were used up before.
    """
    room = int(np.prod(sizes))
    stride = int(room * 0.618034) | 1
    while gcd(stride, room) != 1:
        stride += 2
    # A stride coprime to the number of combinations visits each once before any comes again.
    left = (number % room * stride + room // 7) % room
    choices: list[IntArray] = []
    turn = np.zeros_like(left)
    for size in sizes:
        # Turning each part by the ones before it keeps the choice unique and mixes the syllables.
        choices.append((left + turn) % size)
        turn = turn + 7 * choices[-1]
        left = left // size
    return choices, number // room


def _word(choices: list[IntArray], *sets: Names) -> Names:
    word = sets[0][choices[0]]
    for choice, syllables in zip(choices[1:], sets[1:], strict=True):
        word = np.char.add(word, syllables[choice])
    return word


def _fill(patterns: Names, choice: IntArray, word: Names) -> Names:
    """Put each word into its pattern: 'FC_{}' and 'Ostermark' make 'FC Ostermark'."""
    halves = [pattern.replace("_", " ").split("{}") for pattern in patterns.tolist()]
    before = np.array([half[0] for half in halves])
    after = np.array([half[1] for half in halves])
    return np.char.add(np.char.add(before[choice], word), after[choice])


def entity_names(naming: str, number: IntArray) -> Names:
    """Names of the ``number``-th entities of one type.

    Args:
        naming: of the type (see ``EntityType``).
        number: (N,) position among the entities of that type, from 0.

    Returns:
        (N,) array of str; different numbers and different namings have different names.
    """
    if naming == "person":
        sets = [_GIVEN, _GIVEN_END, _FAMILY, _MIDDLE, _FAMILY_END]
        choices, again = _digits(number, [len(s) for s in sets])
        given = np.char.add(_word(choices[:2], *sets[:2]), " ")
        names = np.char.add(given, _word(choices[2:], *sets[2:]))
    elif naming == "firm":
        sets = [_SECTOR, _FIRM, _MIDDLE, _FIRM_END]
        choices, again = _digits(number, [len(s) for s in sets])
        firm = np.char.add(_word(choices[1:], *sets[1:]), " ")
        names = np.char.add(firm, _SECTOR[choices[0]])
    else:
        patterns = _set(naming)
        sets = [patterns, _PLACE, _MIDDLE, _PLACE_END]
        choices, again = _digits(number, [len(s) for s in sets])
        names = _fill(patterns, choices[0], _word(choices[1:], *sets[1:]))
    if again.any():
        ordinal = np.char.add(" ", (again + 1).astype(str))
        names = np.where(again > 0, np.char.add(names, ordinal), names)
    return names


def names_of(
    types: Sequence[EntityType], of: IntArray, number: IntArray
) -> npt.NDArray[np.object_]:
    """(N,) names, as Python strings, of entities of mixed types (see ``Plan.numbering``).

    Args:
        types: of the world.
        of: (N,) type of each entity.
        number: (N,) position among the entities of its type.
    """
    names = np.empty(len(of), object)
    for at, type_ in enumerate(types):
        rows = of == at
        names[rows] = entity_names(type_.naming, number[rows])
    return names
