"""How an entry of the zoo is made, and its card."""

import copy
import json
import lzma
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from subnet_utils import zoo
from subnet_utils.core.lab import Lab
from subnet_utils.core.messages import nearest
from subnet_utils.core.papers import Paper, papers
from subnet_utils.core.step import Fault
from subnet_utils.core.store import digest_of, digests, save_tensors, write_whole
from subnet_utils.models.staged import fingerprint
from subnet_utils.zoo import NOT_ASKED, ZOO, Entry, ZooError, load, seal, share_right
from subnet_utils.zoo.release import TESTS, XZ, Release, digest_of_test, shrink, store_tests
from subnet_utils.zoo.steps import pack


def make(lab: Lab, names: Sequence[str] = (), folder: Path = ZOO) -> None:
    """Put what papers release of a study into the zoo, or some of it. What the store lacks is trained first.

    An entry is put there when it is whole. Raises ZooError for an unknown name, OSError for a folder that cannot be
    written.
    """
    folder = Path(folder)
    given = [(paper, release) for paper in papers().values() for release in paper.releases_of(lab)]
    known = dict.fromkeys(release.name for _, release in given)
    with TemporaryDirectory(dir=folder) as partial:
        for name in names or known:
            if name not in known:
                raise ZooError(f"profile '{lab.study.name}' has no '{name}' for the zoo; {nearest(name, known)}")
            learned = ((paper, one) for paper, one in given if one.name == name and one.learned(lab))
            if (found := next(learned, None)) is None:
                print(f"{name}: no network has learned it", flush=True)
                continue
            add(lab, *found, Path(partial))
            shutil.rmtree(folder / name, ignore_errors=True)
            os.replace(Path(partial) / name, folder / name)
            (folder / "README.md").write_text(contents(folder), encoding="utf-8")
            print(f"{name}: {len(load(name, folder).masks)} masks", flush=True)


def add(lab: Lab, paper: Paper, release: Release, folder: Path) -> None:
    """Write an entry, its card last."""
    network, masks, without = copy.deepcopy(release.network.load(lab)).cpu(), {}, {}
    for name, step in release.masks().items():
        try:
            masks[name] = step.load(lab)
        except Fault as fault:
            without[name] = str(fault)
    place = folder / release.name
    (place / "masks").mkdir(parents=True)
    save_tensors(place / "network.safetensors", dict(network.named_parameters()) | dict(network.named_buffers()))
    if more := {name: tensor.cpu() for name, tensor in release.more(lab).items()}:
        save_tensors(place / "more.safetensors", more)
    for name, kept in masks.items():
        kept.save(place / "masks" / f"{name}.safetensors")
    section = paper.section_of(lab.study).model_dump(mode="json", exclude_unset=True)
    study = json.dumps({"name": lab.study.name, paper.name: section}, sort_keys=True)
    write_whole(place / f"study.json{XZ}", lzma.compress(study.encode(), preset=9))
    pack(lab, release, place)
    shrink(place)
    entry = Entry(network, masks, dict(release.tests()), more, {}, release)
    described = _described(lab, entry) | {"without": without}
    if release.stored:
        described["stored"] = store_tests(folder.parent / TESTS, entry.tests)
    finish(place, lab, paper, entry, described)


def finish(place: Path, lab: Lab, paper: Paper, entry: Entry, described: Mapping[str, Any]) -> None:
    """Write the card of an entry whose other files are there."""
    release = entry.release
    card = {"name": release.name, "paper": paper.name, "reference": paper.reference, "profile": lab.study.name}
    card |= {"task": release.task, "seed": release.seed, "chance": release.chance, **described}
    card |= {"effects": json.loads(release.effects().to_json(orient="split", index=False))}
    (place / "card.md").write_text(page(card), encoding="utf-8")
    card["files"] = {file: digest for file, digest in digests(place).items() if file != "card.json"}
    text = json.dumps(card | {"seal": seal(json.loads(json.dumps(card)))}, sort_keys=True, allow_nan=False)
    write_whole(place / "card.json", f"{text}\n".encode())


def _described(lab: Lab, entry: Entry) -> dict[str, Any]:
    """What a card says of the network, its masks, its tests, and of what every part answers."""
    step, network = entry.release.network, entry.network
    about = {name: step.make(lab).json("provenance").get(name) for name in MADE}
    size = sum(weight.numel() for weight in network.parameters())
    return {
        "network": {"fingerprint": fingerprint(network), "step": step.name, "weights": size},
        "made": about,
        "masks": {name: {"density": kept.density, "total": kept.total} for name, kept in entry.masks.items()},
        "tests": {name: digest_of_test(test) for name, test in entry.tests.items()},
        "answers": [answered(entry, name, part, test) for name, part in entry.parts for test in entry.tests],
    }


MADE = ("commit", "created", "versions", "machine", "device", "precision", "seconds")
"""What a card takes from the provenance of the network."""


def answered(entry: Entry, name: str, part: Any, test: str) -> dict[str, Any]:
    """What a card says of a part on a test: its accuracy, and the digest of its answers."""
    answers, targets = entry.logits(part, test).argmax(dim=-1), entry.tests[test][1]
    asked = answers.where(targets != NOT_ASKED, NOT_ASKED)
    about = {"part": name, "test": test, "accuracy": share_right(answers, targets)}
    return about | {"digest": digest_of({"answers": asked})[:16]}


def page(card: Mapping[str, Any]) -> str:
    """A card for readers, as Markdown."""
    made, tests = card["made"], list(dict.fromkeys(row["test"] for row in card["answers"]))
    accuracy = {(row["part"], row["test"]): f"{row['accuracy']:.3f}" for row in card["answers"]}
    density = {name: f"{mask['density']:.3f}" for name, mask in card["masks"].items()}
    parts = dict.fromkeys(part for part, _ in accuracy)
    rows = [[part, density.get(part, ""), *(accuracy[part, test] for test in tests)] for part in parts]
    how = f"torch {made['versions']['torch']}, {made['device']}, {made['precision']}"
    lines = [
        f"# {card['name']}",
        card["task"],
        f"{card['reference']}. Profile `{card['profile']}`, seed {card['seed']}.",
        f"The network has {card['network']['weights']:,} weights. It was made at commit {made['commit']} ({how}).",
        "Accuracy on each test, of the network, of each subnetwork alone, and of the network without it. "
        f"A guess is right in {card['chance']:.2g} of the cases.",
        "\n".join(_table(["part", "share of weights", *tests], rows)),
    ]
    if rows := card["effects"]["data"]:
        said = "Effects in the committed tables of the profile, with 95% intervals. Their base models are of a run of "
        lines += [said + "their own: this network need not be one of them."]
        lines += ["\n".join(_table(card["effects"]["columns"], [map(_short, row) for row in rows]))]
    lines += [f"No mask '{name}': {why}." for name, why in card["without"].items()]
    return "\n\n".join(lines) + "\n"


def contents(folder: Path = ZOO) -> str:
    """The zoo for readers, as Markdown: a row for each entry, with its card."""
    table = zoo.list(folder)
    table["name"] = [f"[{name}]({name}/card.md)" for name in table["name"]]
    lines = [
        "# The zoo",
        "Trained networks with masks and tests. Nothing is trained to use them:",
        '```python\nfrom subnet_utils import zoo\n\nentry = zoo.load("sv-agreement-singular")\n```',
        "\n".join(_table(list(table), table.astype(str).to_numpy().tolist())),
        "Accuracy is that of the whole network on one test. The card has that of each part on each test. The test `0` "
        "is that of class 0 of the images. In `planted_*` and `compiled_*` it is known which weights do what (notebook "
        "10c): in `planted_*` only these were trained, in `compiled_*` every weight was set by hand.",
        "`python -m subnet_utils.zoo unpack` puts their training among the artefacts of the checkout. The notebooks on "
        "`laptop` then train only what is missing: networks with other seeds, and what has large files and is soon "
        "made. That is the masks of notebook 10a and most networks of 10c (seconds). Of bert_4x128 the prunings of "
        "notebook 08b are here. What they were pruned from is made anew (ten minutes), and so are the prunings of "
        "its checkpoints (two hours). Where a processor rounds otherwise, all prunings are made anew.",
        "`python -m subnet_utils.zoo make laptop` fills this folder from the artefacts of a study.",
    ]
    return "\n\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Any]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1g}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
    return "" if value is None else str(value)
