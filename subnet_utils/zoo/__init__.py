"""The zoo: trained networks with masks and tests, in the repository, to be used without training.

    from subnet_utils import zoo

    entry = zoo.load("sv-agreement-singular")
    entry.accuracy(entry.part("subject"), "verb")

An entry is a folder in `zoo/`: `network.safetensors.xz` (float32), `masks/` (a bit for each weight), `steps.tar.xz`
(how they were trained, see `steps`), `study.json.xz`, the part of a profile that says how the network is built and
tested, and `card.json`, with `card.md` for readers. Most tests are drawn again by the task's own generator; drawn
digits differ by machines and are in `zoo/tests`. The card has the digests of all files, of the tests, of
what each part answers, and of itself.

Weights, masks and tests are the same on every machine, or `load` refuses them. Logits are computed in float64. In
float32 some answers are others where a processor adds in another order. In float64 none was, with all that we tried.
`python -m subnet_utils.zoo make laptop` fills the zoo from what papers register (`cards`).
"""

import copy
import hashlib
import json
import lzma
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.messages import nearest, of_companion
from subnet_utils.core.papers import papers
from subnet_utils.core.sections import ROOT
from subnet_utils.core.store import Store, digests, load_tensors
from subnet_utils.core.study import Study
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.staged import fingerprint
from subnet_utils.zoo.release import TESTS, XZ, Inputs, Release, Tensors, Test, digest_of_test, grown, stored_tests

ZOO = ROOT / "zoo"
WHOLE = "whole network"
DECIMALS = 12
"""Of logits: those that should be equal are so, in whatever order a processor adds."""
NOT_ASKED = -100
"""Target of an answer that is not asked for."""


class ZooError(ValueError):
    """An entry is unknown or damaged; the message names it and the remedy."""


@dataclass(frozen=True, repr=False)
class Entry:
    """A network of the zoo, frozen, on the CPU, with its masks, its tests and its card."""

    network: nn.Module
    masks: dict[str, Subnetwork]
    tests: dict[str, Test]
    more: Tensors
    card: dict[str, Any]
    release: Release

    def __repr__(self) -> str:
        """One line."""
        return f"Entry({self.release.name}; masks: {', '.join(self.masks)}; tests: {', '.join(self.tests)})"

    def part(self, mask: str | Subnetwork) -> nn.Module:
        """A subnetwork alone, by name or as it is: `~entry.masks[name]` is the network without that one.

        Raises ZooError for an unknown name, WrongNetwork for a subnetwork of another network.
        """
        if not isinstance(mask, Subnetwork):
            mask = _known(self.masks, str(mask), f"zoo entry '{self.release.name}' has no mask")
        return self.release.part(self.network, mask, self.more)

    @property
    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """The whole network; each subnetwork alone; the network without each."""
        yield WHOLE, self.network
        for name, kept in self.masks.items():
            yield name, self.part(kept)
            yield f"without {name}", self.part(~kept)

    @torch.no_grad()
    def logits(self, network: nn.Module | str | Subnetwork, test: str) -> Tensor:
        """[n, ..., classes] of a part on a test, float64, to `DECIMALS`. Raises ZooError for an unknown test, and as
        `part` does, which takes a mask or its name."""
        network = network if isinstance(network, nn.Module) else self.part(network)
        inputs, _ = _known(self.tests, test, f"zoo entry '{self.release.name}' has no test")
        with _double_precision():
            found = self.release.logits(copy.deepcopy(network).double(), _as_float64(inputs))
        return found.round(decimals=DECIMALS)

    def accuracy(self, network: nn.Module | str | Subnetwork, test: str) -> float:
        """Share of a test's examples that a part has right, with all that is asked of each."""
        return share_right(self.logits(network, test).argmax(dim=-1), self.tests[test][1])


@contextmanager
def _double_precision() -> Iterator[None]:
    """Tensors that a network makes by itself are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _as_float64(inputs: Inputs) -> Inputs:
    if isinstance(inputs, Mapping):
        return {name: _as_float64(tensor) for name, tensor in inputs.items()}
    return inputs.double() if inputs.is_floating_point() else inputs


def share_right(answers: Tensor, targets: Tensor) -> float:
    """Share of examples [n, ...] with all answers right that are asked for."""
    return float(((answers == targets) | (targets == NOT_ASKED)).reshape(len(targets), -1).all(dim=1).double().mean())


@of_companion()
def load(name: str, folder: Path = ZOO) -> Entry:
    """An entry. Raises ZooError for an unknown name, a damaged file, and a mask of another network.

    >>> entry = load("sv-agreement-singular")
    >>> [*entry.tests]
    ['subject', 'verb', 'whole task']
    >>> f"{entry.accuracy(entry.part('subject'), 'subject'):.2f}"
    '1.00'
    """
    place = _known(stocked(Path(folder)), str(name), "no zoo entry")
    card = checked(place)
    release = _release(place, card)
    network, more = release.fresh(), {}
    with grown(place) as files:
        try:
            network.load_state_dict(load_tensors(files / "network.safetensors")[0], strict=False)
        except RuntimeError:  # torch's, with a line for each weight
            raise ZooError(f"zoo entry '{name}': its weights do not fit the network any more; {_anew(card)}") from None
        if (files / "more.safetensors").exists():
            more = load_tensors(files / "more.safetensors")[0]
        masks = {mask: Subnetwork.load(files / "masks" / f"{mask}.safetensors") for mask in card["masks"]}
        tests = _stored(place, card["stored"]) if release.stored else dict(release.tests())
    owners = {"its network": fingerprint(network)} | {f"mask '{mask}'": one.network for mask, one in masks.items()}
    for what, owner in owners.items():
        if owner != card["network"]["fingerprint"]:
            raise ZooError(f"zoo entry '{name}': {what} is of another network than its card; {restored(place)}")
    for test, one in tests.items():
        if digest_of_test(one) != card["tests"].get(test):
            raise ZooError(f"zoo entry '{name}': test '{test}' is drawn otherwise now; {_anew(card)}")
    return Entry(network.eval().requires_grad_(False), masks, tests, more, card, release)


def _stored(place: Path, name: str) -> dict[str, Test]:
    try:
        return stored_tests(place.parent / TESTS, name)
    except ValueError as error:
        what = f"zoo entry '{place.name}': its tests are damaged ({error}); restore them: git checkout -- zoo/{TESTS}"
        raise ZooError(what) from None


def checked(place: Path) -> dict[str, Any]:
    """The card of an entry whose files are those of its card. Raises ZooError otherwise."""
    card, found = _card(place), digests(place)
    for file, digest in card["files"].items():
        if found.get(file) != digest:
            raise ZooError(f"zoo entry '{place.name}': {file} is not the file of its card; {restored(place)}")
    if more := [file for file in found if file.endswith(XZ) and file not in card["files"]]:
        raise ZooError(f"zoo entry '{place.name}': its card knows no {more[0]}; delete that file")
    return card


def seal(card: Mapping[str, Any]) -> str:
    """The digest of a card, without the one that it has: sixteen hexadecimal digits."""
    text = json.dumps({name: value for name, value in card.items() if name != "seal"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stocked(folder: Path) -> dict[str, Path]:
    """The entries of a folder, by name. Raises ZooError where there are none."""
    if found := {path.parent.name: path.parent for path in sorted(folder.glob("*/card.json"))}:
        return found
    raise ZooError(f"no zoo in {folder}; it is in the checkout: pip install -e '.[companion]' there")


def list(folder: Path = ZOO) -> pd.DataFrame:
    """All entries, a row each. accuracy: of the whole network on its first test."""
    rows = []
    for place in stocked(Path(folder)).values():
        card = _card(place)
        first = next(row for row in card["answers"] if row["part"] == WHOLE)
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        row = {name: card[name] for name in ("name", "paper", "profile")} | {"weights": card["network"]["weights"]}
        row |= {"masks": len(card["masks"]), "accuracy": f"{first['accuracy']:.2f} on {first['test']}"}
        rows.append(row | {"kilobytes": round(size / 1000)})
    return pd.DataFrame(rows)


def _known(things: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in things:
        raise ZooError(f"{what} {name!r}; {nearest(name, things)}")
    return things[name]


def _card(place: Path) -> dict[str, Any]:
    known = _known(stocked(place.parent), place.name, "no zoo entry")
    try:
        card = json.loads((known / "card.json").read_text(encoding="utf-8"))
    except (ValueError, OSError):
        raise ZooError(f"zoo entry '{place.name}': card.json is no JSON; {restored(place)}") from None
    if not isinstance(card, dict) or card.get("seal") != seal(card):
        raise ZooError(f"zoo entry '{place.name}': card.json is not as it was made; {restored(place)}")
    if card["name"] != place.name:
        raise ZooError(f"zoo entry '{place.name}' is a copy of '{card['name']}'; delete it")
    return card


def _release(place: Path, card: Mapping[str, Any]) -> Release:
    """The release that the entry was made from, by the study beside it."""
    paper = _known(papers(), card["paper"], f"zoo entry '{place.name}' is of no paper that is here:")
    try:
        study = Study.model_validate_json(lzma.decompress((place / f"study.json{XZ}").read_bytes()))
    except ValidationError:
        raise ZooError(f"zoo entry '{place.name}': its study is not valid any more; {_anew(card)}") from None
    for release in paper.releases_of(Lab(study, Store())):
        if (release.name, release.seed) == (card["name"], card["seed"]):
            return release
    raise ZooError(f"zoo entry '{place.name}': {paper.name} has it no more; {_anew(card)}")


def restored(place: Path) -> str:
    """What a message advises for a damaged entry."""
    return f"restore it: git checkout -- zoo/{place.name}"


def _anew(card: Mapping[str, Any]) -> str:
    return f"check out {card['made']['commit']}, or: python -m subnet_utils.zoo make {card['profile']} {card['name']}"
