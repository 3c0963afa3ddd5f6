"""A page on which a reader takes a language network apart.

`python -m subnet_utils.papers.break_it_down.network_page laptop` writes it.

One HTML file holds the network, the subnetworks of both subroutines and both tests. Its script runs the forward pass of
`models.language` (BERT, section 5 of *Break It Down*) on the weights that the reader leaves, so no server is needed.
"""

import argparse
import base64
import sys
from pathlib import Path
from typing import Any

import torch
from jinja2 import ChoiceLoader, PackageLoader
from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.core.store import write_whole
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.language import PADDING
from subnet_utils.papers.break_it_down import networks, tables
from subnet_utils.papers.break_it_down.dissection import Parts, subnetworks
from subnet_utils.papers.break_it_down.figures.overlap import short_weight
from subnet_utils.papers.break_it_down.sets import Sentences
from subnet_utils.report.site import TEMPLATES, site_folder
from subnet_utils.statistics import LEARNED
from subnet_utils.tasks.odd_one_out import subroutines_of

UNMASKED = 4
"""Region of a weight that no mask covers. In the others, 0 to 3, bit 0 stands for the first subnetwork, bit 1 for the
second."""
LARGEST = 5_000_000
"""Bytes of a page that loads at once."""
NOT_READ = "stages.pooler"
"""Weights that the forward pass does not read, see `models.language.Pooler`."""
SMALLEST = 128
"""Pixels to a side of a weight that is drawn; in a narrower network an entry has several."""
PAGE = "network.html"
LOADER = ChoiceLoader([PackageLoader("subnet_utils.papers.break_it_down"), TEMPLATES.loader])


def learned(lab: Lab) -> Parts:
    """The first language network that has learned its task, with the first mask of each subroutine.

    What is missing is made, one after the other, and nothing else. Raises ValueError if no network will do.
    """
    for base in networks.bases(lab, lab.section("break_it_down").experiments):
        if base.modality == "language" and base.result(lab)["test_accuracy"] >= LEARNED:
            masks = tables.final_masks(lab, [base])
            own = ([mask for mask in masks if mask.subroutine == name] for name in subroutines_of(base.task))
            found = [next((mask for mask in some if not mask.fault(lab)), None) for some in own]
            if None not in found and len({mask.start(lab) for mask in found}) == 1:
                return Parts.of(tuple(found))
    raise ValueError(f"no language network of '{lab.study.name}' has learned its task and has masks of one start")


def write(lab: Lab, pair: Parts, folder: Path) -> Path:
    """Write the page of a network and its two masks. Raises ValueError for a network that makes too large a page."""
    sets = {mask.subroutine: pair.base.data(f"probe-{mask.subroutine}", "test") for mask in pair.masks}
    content = {"tests": {name: _test(lab, chosen) for name, chosen in sets.items()}, **_weights(lab, pair)}
    template = TEMPLATES.overlay(loader=LOADER).get_template("network_page.html")
    shown = {"title": "Take a network apart", "profile": lab.study.name, "about": pair.title, "network": content}
    text = template.render(shown, cell=max(1, SMALLEST // pair.base.architecture.width)).encode()
    if len(text) > LARGEST:
        raise ValueError(f"the page of {pair.title} has {len(text):,} bytes, {LARGEST:,} at most; use smaller networks")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PAGE, text)
    return folder / PAGE


def _test(lab: Lab, chosen: Sentences) -> dict[str, Any]:
    """A test: sentences, their tokens without padding, examples with the odd one last."""
    data = chosen.load(lab)
    tokens = [row[row != PADDING].tolist() for row in data.items]
    return {"sentences": chosen.readable().sentences, "tokens": tokens, "examples": data.examples.tolist()}


def _weights(lab: Lab, pair: Parts) -> dict[str, Any]:
    """All weights that a forward pass reads, float32, and of each matrix that can be masked an entry's region, a byte.

    tensors, matrices: name -> number of the first entry, then the shape; numbers, regions: the entries in base64.
    """
    base, masks = pair.base.load(lab), list(subnetworks(lab, pair).values())
    named = {name: tensor for name, tensor in base.state_dict().items() if not name.startswith(NOT_READ)}
    matrices = {name: _regions(name, tensor, masks) for name, tensor in named.items() if name in base.maskable()}
    positions, numbers = _listed({name: tensor.float() for name, tensor in named.items()})
    where, regions = _listed(matrices)
    titles = {name: short_weight(name) for name in matrices}
    eps = base.stages["embeddings"].LayerNorm.eps
    about = {"layers": pair.base.architecture.layers, "heads": pair.heads, "eps": eps, "titles": titles}
    return about | {"tensors": positions, "numbers": numbers, "matrices": where, "regions": regions}


def _regions(name: str, weight: Tensor, masks: list[Subnetwork]) -> Tensor:
    if name not in masks[0].masks:
        return torch.full(weight.shape, UNMASKED, dtype=torch.uint8)
    first, second = (one.masks[name].byte() for one in masks)
    return first + 2 * second


def _listed(tensors: dict[str, Tensor]) -> tuple[dict[str, list[int]], str]:
    """Where each tensor begins, with its shape, and all of them in base64, little-endian."""
    positions, first = {}, 0
    for name, tensor in tensors.items():
        positions[name] = [first, *tensor.shape]
        first += tensor.numel()
    joined = torch.cat([tensor.cpu().flatten() for tensor in tensors.values()]).numpy()
    return positions, base64.b64encode(joined.astype(joined.dtype.newbyteorder("<")).tobytes()).decode()


def main() -> int:
    """Write the page of a profile and say where it is; 2 and a line on stderr if no network will do."""
    parser = argparse.ArgumentParser(
        prog="python -m subnet_utils.papers.break_it_down.network_page", description=__doc__
    )
    parser.add_argument("study", help="laptop, another profile, or the YAML file of a study")
    try:
        lab = Lab.open(parser.parse_args().study)
        print(write(lab, learned(lab), site_folder(lab.study.name)))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
