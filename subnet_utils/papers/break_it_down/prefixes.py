"""Cached outputs of frozen prefixes, shared by the masks of a base model that one process trains or measures."""

from collections import OrderedDict
from collections.abc import Collection
from functools import partial

from subnet_utils.core.jobs import cache_limit
from subnet_utils.core.lab import Lab
from subnet_utils.models.frozen import FrozenPrefix
from subnet_utils.papers.break_it_down.networks import Network
from subnet_utils.papers.break_it_down.sets import ExampleSet

_KEPT: OrderedDict[tuple, FrozenPrefix] = OrderedDict()
"""Cached outputs of this process, the least recently used first."""


def outputs(
    lab: Lab, base: Network, chosen: ExampleSet, start: str, in_use: Collection[FrozenPrefix] = ()
) -> FrozenPrefix:
    """Outputs of a base's frozen prefix for a set's items, kept for the next mask of the same base and start.

    Those that were not used for longest are dropped before all together exceed `cache_limit`, and those of another base
    as soon as there are any of this one: jobs come base by base, and on a GPU the masks need the room. in_use: outputs
    in use meanwhile; what they leave of the limit is all that there is.
    """
    about, left = (lab, base, chosen), cache_limit(lab.study.compute) - sum(own.gb for own in in_use)
    if (*about, start) not in _KEPT:
        for other in [key for key in _KEPT if key[:2] != (lab, base)]:
            del _KEPT[other]
        prefix, _ = base.load(lab).cut(start)
        make_room = partial(_make_room, left=left, in_use=in_use)
        made = FrozenPrefix(prefix, chosen.load(lab).items, device=lab.device, limit_gb=left, make_room=make_room)
        if in_use and not made.gb:
            return made  # alone they may fit
        _KEPT[*about, start] = made
    _KEPT.move_to_end((*about, start))
    return _KEPT[*about, start]


def drop_all_but(used: Collection[FrozenPrefix]) -> bool:
    """Let go of all other outputs that are kept; whether they took any room."""
    others = [key for key, kept in _KEPT.items() if kept not in used]
    return sum(_KEPT.pop(key).gb for key in others) > 0


def _make_room(gb: float, left: float, in_use: Collection[FrozenPrefix]) -> None:
    others = [key for key, kept in _KEPT.items() if kept not in in_use]
    while others and sum(_KEPT[key].gb for key in others) + gb > left:
        del _KEPT[others.pop(0)]
