"""A rehearsal makes one step of each kind, counts all of them once, and goes on where one fails."""

import json
import mmap
import socket
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from subnet_utils import check
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import papers
from subnet_utils.core.sections import Compute, elsewhere_in
from subnet_utils.core.step import Step, with_parents
from subnet_utils.core.store import Store
from subnet_utils.core.study import Study
from subnet_utils.cost import measures, reduction, rehearse, stand_ins
from subnet_utils.models.architectures import ResNet
from subnet_utils.papers.break_it_down.section import Sizes
from subnet_utils.papers.break_it_down.sets import Drawing, Images
from subnet_utils.papers.heuristic_core import stand_ins as sentences
from subnet_utils.papers.identification_methods.planted import Design
from subnet_utils.papers.identification_methods.planted_steps import PlantedNetwork
from subnet_utils.papers.subtask_induction import stand_ins as photographs
from subnet_utils.tasks import images, pair_files, pictures
from subnet_utils.tasks.odd_one_out import VISION_TASKS
from subnet_utils.training import Recipe, fit

PAPERS = ("paper", "paper_gpt2", "paper_qqp", "paper_roberta")
INPUTS, OUTPUTS, ROWS = 48, 20, 8
FORWARD = 2 * ROWS * INPUTS * OUTPUTS
"""Operations of a linear layer; its gradient for the weights takes as many, and none is needed for the inputs."""


@dataclass(frozen=True)
class Base(Step):
    """A training of a linear layer. train: examples."""

    architecture: ResNet
    seed: int
    rate: float = 0.1
    train: int = 5000
    batch_size: int = ROWS
    broken: bool = False

    def build(self, lab, folder):
        assert not self.broken, "a shape\nthat does not fit"
        layer = nn.Linear(INPUTS, OUTPUTS)
        fit(dict(layer.named_parameters()), lambda epoch: range(3), lambda batch, epoch: squares(layer),
            recipe=Recipe(0.01, 5, 0))  # fmt: skip
        return {"train": self.train, "batch": self.batch_size}


@dataclass(frozen=True)
class Score(Step):
    """Something that is made of several bases."""

    bases: tuple[Base, ...]
    draws: int = 99
    label: str = field(default="", compare=False)

    def build(self, lab, folder):
        return {"trained on": [base.result(lab)["train"] for base in self.bases], "draws": self.draws}


@dataclass
class Toy:
    """A paper with some steps."""

    steps: list[Step]

    def steps_of(self, lab):
        return with_parents(self.steps)


def squares(layer, weights=None):
    inputs = torch.ones(ROWS, INPUTS)
    outputs = layer(inputs) if weights is None else functional_call(layer, weights, inputs)
    return outputs.square().mean()


@pytest.fixture
def lab(tmp_path) -> Lab:
    study = Study.load("check").model_copy(update={"name": "toy", "compute": Compute(workers=1, device="cpu")})
    return Lab(study, Store(tmp_path))


@pytest.fixture
def toy(monkeypatch):
    """A study of bases in groups: four alike, one of another width, one that is broken; and of scores of these."""
    small, wide = (ResNet(family="resnet", width=width) for width in (8, 16))
    alike = [Base(small, seed, rate) for seed in (0, 1) for rate in (0.1, 0.2)]
    broken = Base(small, 0, broken=True)
    steps = [Score(tuple(alike)), Score((alike[0], Base(wide, 0))), Score((broken,)), Score((alike[1],))]
    monkeypatch.setattr(rehearse, "papers", lambda: {"toy": Toy(steps)})


# Operations and memory.


@pytest.mark.parametrize("runs", [1, 3])
def test_operations_of_a_linear_layer_are_those_of_its_closed_form(runs):
    """Three batches an epoch for five epochs, of which a few batches are trained on; stacked networks count each."""
    layer, work = nn.Linear(INPUTS, OUTPUTS), measures.Counted()
    if runs == 1:
        weights, loss = dict(layer.named_parameters()), lambda batch, epoch: squares(layer)
    else:
        weights = {name: torch.ones(runs, *one.shape, requires_grad=True) for name, one in layer.named_parameters()}
        loss = lambda batch, epoch: vmap(partial(squares, layer))(weights)  # noqa: E731
    history = work.fit(weights, lambda epoch: range(3), loss, recipe=Recipe(0.01, 5, 0), label="toy")
    assert len(history) == 5
    assert work.total == 5 * 3 * runs * 2 * FORWARD


def test_the_peak_of_memory_is_that_of_a_step():
    measures.forget_peak()
    before = measures.peak()
    held = mmap.mmap(-1, 300 * 2**20)  # of its own pages, whatever the process keeps of freed memory
    np.frombuffer(held, np.uint8)[::1024] = 1
    with_it = measures.peak()
    held.close()
    measures.forget_peak()
    assert with_it - before >= 290 * 2**20, "what else was freed meanwhile counts, too"
    assert with_it - measures.peak() >= 250 * 2**20


# Groups.


def test_every_step_counts_once_and_one_of_each_group_is_made(lab, toy):
    rows = pd.DataFrame(rehearse.rehearse(lab, rate=1e-6))
    count = len(rehearse.papers()["toy"].steps_of(lab))
    assert rows["steps"].sum() == count == 4 + 1 + 1 + 4
    bases = rows[rows["kind"].str.endswith("base")]
    assert sorted(bases["steps"]) == [1, 1, 4], "seeds and rates make no group of their own"
    good = bases[bases["failed"] == ""]
    # the batch is cut in half, so the whole would take twice as many operations
    tflop = 5 * 3 * 2 * FORWARD * 2 / 1e12
    assert good["tflop"].tolist() == pytest.approx([tflop] * 2, rel=0.01)
    assert good["gpu_hours"].tolist() == pytest.approx([4 * tflop / 1e-6 / 3600, tflop / 1e-6 / 3600], rel=0.01)
    assert set(rows["batch"]) == {ROWS} and set(rows["batch_made"]) == {reduction.BATCH}


def test_a_step_that_fails_stops_no_other_and_is_told(lab, toy, tmp_path, capsys):
    path = tmp_path / "rehearsals" / "toy.csv"
    assert rehearse._written(rehearse.rehearse(lab), path, {"rate_tflop_s": 100.0}) == 1
    failed = pd.read_csv(path, keep_default_na=False)["failed"].tolist()
    assert failed.count("AssertionError: a shape") == 1
    assert sum("it needs test_rehearse-base, which could not be made" in why for why in failed) == 1
    assert failed.count("") == len(failed) - 2 >= 4
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"2 of {len(failed)} groups failed (10 steps)")
    facts = json.loads(path.with_suffix(".json").read_text())
    assert (facts["failed"], facts["groups"], facts["steps"]) == (2, len(failed), 10) and facts["created"]


def test_a_step_is_rehearsed_on_all_cores(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Alone(Step):
        def build(self, lab, folder):
            seen.append(torch.get_num_threads())

    seen: list[int] = []
    monkeypatch.setattr(rehearse, "papers", lambda: {"toy": Toy([Alone()])})
    monkeypatch.setattr(rehearse, "core_count", lambda: 3)
    assert rehearse.main(["check", "--folder", str(tmp_path)]) == 0 and seen == [3]


def killed(rows):
    yield next(iter(rows))
    raise KeyboardInterrupt


def test_what_failed_is_made_again_and_what_it_is_made_of(lab, toy, tmp_path):
    before = pd.DataFrame(rehearse.rehearse(lab)).assign(seconds=99.0)
    base = before["kind"].str.endswith("base")
    for earlier in (before, before.assign(failed=before["failed"].mask(base, ""))):
        rows = pd.DataFrame(rehearse.rehearse(lab, before=earlier))
        again = rows["seconds"] != 99
        assert again.sum() == 2 and rows.loc[again, "failed"].tolist() == before["failed"][again].tolist()
        assert rows[~again].equals(before[~again])
    path = tmp_path / "toy.csv"  # killed after one row
    with pytest.raises(KeyboardInterrupt):
        rehearse._written(killed(rehearse.rehearse(lab, before=before)), path, {}, before)
    assert pd.read_csv(path, keep_default_na=False)["failed"].tolist() == before["failed"].tolist()
    with pytest.raises(ValueError, match="has other groups than this study; rehearse it without --again"):
        list(rehearse.rehearse(lab, before=before.iloc[1:]))


def test_the_steps_of_the_check_profile_are_each_in_one_group(tmp_path):
    lab = Lab.open("check", tmp_path)
    steps = with_parents(step for paper in papers().values() for step in paper.steps_of(lab))
    found = rehearse.groups(lab)
    assert sum(one.steps for one in found) == len(steps)
    assert {one.small.kind() for one in found} == {step.kind() for step in steps}
    assert len(found) < len(steps) / 2
    assert all("about" in one.about for one in found)  # of a network that is a word and not a section, too


def test_a_step_for_which_another_stood_in_is_made_none_the_less(lab, monkeypatch):
    """The second base has a group of its own, by its task; before and after, the first one stands in for it."""

    @dataclass(frozen=True)
    class Tasked(Base):
        task: str = ""

    first, second = (Tasked(ResNet(family="resnet"), 0, task=task) for task in VISION_TASKS[:2])

    @dataclass(frozen=True)
    class Whose(Step):
        base: Base
        rate: float

        def build(self, lab, folder):
            seen.append(self.base.make(lab).key)

    seen: list[str] = []
    steps = [first, Whose(second, 0.1), second, Whose(first, 0.2), Whose(second, 0.3)]
    groups = [rehearse.Group(one, one, 1, 1) for one in steps]
    monkeypatch.setattr(rehearse, "groups", lambda lab: groups)
    rows = list(rehearse.rehearse(lab))
    assert [row["tflop"] > 0 for row in rows] == [True, False, True, False, False]
    assert not any(row["failed"] for row in rows)
    assert len(seen) == 3 and len(set(seen)) == 1


def test_a_planted_network_needs_no_proof_in_a_rehearsal(lab, monkeypatch):
    step = PlantedNetwork(Design(), 0)
    monkeypatch.setattr(rehearse, "groups", lambda lab: [rehearse.Group(step, step, 1, 1)])
    (row,) = rehearse.rehearse(lab)
    assert row["tflop"] > 0 and not row["failed"]


def test_all_of_a_group_cost_by_their_examples():
    def drawn(n: int) -> Step:
        return Drawing("inside-contact", "base", "train", n, 0, 64)

    made = rehearse._group([(drawn(n), drawn(n)) for n in (100, 500, 500, 400)], {})
    assert (made.whole.n, made.steps, made.work) == (500, 4, 1500 / 500)


# What is made smaller.


def test_examples_become_few_and_the_whole_is_remembered():
    parts = tuple(Drawing("inside-contact", "base", "train", 500, 0, 64, first) for first in (0, 500, 1000))

    @dataclass(frozen=True)
    class Seen(Step):
        train: Images
        architecture: ResNet
        batch_size: int = 64
        draws: int = 99
        sizes: Sizes = Sizes(train=4000, validation=500, test=1000)

    whole = Seen(Images(parts), ResNet(family="resnet"))
    small = reduction.smaller(whole, {})
    assert [(part.n, part.first) for part in small.train.parts] == [(5, 0)] * 3
    assert (small.batch_size, small.draws, small.architecture) == (4, 3, whole.architecture)
    assert (small.sizes.train, small.sizes.test) == (40, 10)
    assert reduction.scale(whole) == 100
    assert reduction.scale(replace(whole, train=Images(()))) == 64 / 4
    assert reduction.words(whole) == "ResNet, task inside-contact, resolution 64"


# Stand-ins.


@pytest.mark.parametrize("profile", PAPERS)
def test_all_that_a_papers_profile_takes_from_elsewhere_has_a_stand_in(profile, monkeypatch, tmp_path):
    def made(folder: Path) -> Path:
        folder.mkdir(parents=True)
        return folder

    known = {name for paper in papers().values() if paper.stand_ins for name in paper.resolve(paper.stand_ins)}
    monkeypatch.setattr("subnet_utils.core.papers.Paper.resolve", lambda paper, name: dict.fromkeys(known, made))
    study = Study.load(profile)
    assert {*elsewhere_in(study)} <= known
    replaced, names = stand_ins.with_stand_ins(study, tmp_path / "made")
    assert names.keys() == {*elsewhere_in(study)}
    assert {*elsewhere_in(replaced)} == {*map(str, names.values())}


@pytest.mark.parametrize("profile", PAPERS[1:])
def test_with_stand_ins_a_profile_lacks_nothing_and_asks_no_network(profile, monkeypatch, tmp_path):
    def of_one_layer(network, config, folder, **options):
        config.num_hidden_layers = 1  # all of them take seconds
        return saved(network, config, folder, **options)

    def refuse(*_):
        raise AssertionError("no network is to be asked")

    saved = stand_ins.saved
    for module in (stand_ins, sentences):
        monkeypatch.setattr(module, "saved", of_one_layer)
    study, _ = stand_ins.with_stand_ins(Study.load(profile), tmp_path / "made")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert check.cannot_run(study) == {}
    steps = papers()["heuristic_core"].steps_of(Lab.open(study, tmp_path / "store"))
    assert any(step.kind() == "heuristic_core-pair_network" for step in steps)


def test_stand_ins_for_pairs_are_read_as_the_published_ones_are(tmp_path):
    makers = sentences.MAKERS
    train = pair_files.read_pairs(makers["hub:nyu-mll/multi_nli:train"](tmp_path / "0"), labels=pair_files.CLASSES)
    assert set(train["label"]) == {0, 1, 2} and train["premise"].str.split().str.len().min() >= 100
    hans = pair_files.read_hans(makers["hub:jhu-cogsci/hans:validation"](tmp_path / "1"))
    assert {*pair_files.MAIN_SUBCASES} <= {*hans["kind"]}
    assert set(pair_files.read_paws(makers["data/paws_qqp.tsv"](tmp_path / "2"))["label"]) == {0, 1}
    place = makers["hub:nyu-mll/glue:qqp:validation"](tmp_path / "3")
    questions = pair_files.read_pairs(place, labels=("not_duplicate", "duplicate"))
    assert set(questions["label"]) == {0, 1}


def test_stand_ins_for_images_are_read_as_the_published_ones_are(tmp_path):
    few = photographs.images(tmp_path / "train", each=2)
    split = images.split_folder(few, photographs.CLASSES, mask=1, validation=1)
    assert {name: len(files) for name, files in split.items()} == {"train": 16, "mask": 16, "validation": 16}
    assert len(images.conflict_files(photographs.conflicts(tmp_path / "conflicts"), photographs.CLASSES)) == 2 * 16
    digits, colors = (
        pictures.from_folder(make(tmp_path / make.__name__)) for make in (stand_ins.mnist, stand_ins.cifar10)
    )
    assert digits["train"].pixels.shape == (stand_ins.TRAIN, 1, 28, 28)
    assert colors["test"].pixels.shape == (stand_ins.TEST, 3, 32, 32) and set(colors["test"].labels.tolist()) == {
        *range(10)
    }
