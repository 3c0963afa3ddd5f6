"""Networks of every condition at the smallest size: pretrained, pruned, untrained; and what a study may ask for."""

import shutil
from dataclasses import dataclass

import pytest
import torch
from transformers import BertConfig, BertModel

from subnet_utils.core.jobs import worker_count
from subnet_utils.core.lab import Lab, make_all
from subnet_utils.core.sections import Compute
from subnet_utils.core.store import Store, save_json
from subnet_utils.core.study import Study, StudyError
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down import base_models, ledger, stimuli
from subnet_utils.papers.break_it_down import tables as break_it_down
from subnet_utils.papers.break_it_down.base_models import (
    best_pruning,
    load_base,
    pretrain,
    prune,
    prunings,
    train_base,
)
from subnet_utils.papers.break_it_down.tasks import shapes, tokenization
from subnet_utils.training import TrainingDiverged
from tests import micro


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(micro.whole_study(precision="float32"), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def pruned(lab):
    table = break_it_down.effects(lab.pruned())
    return table, break_it_down.networks(lab.pruned().study, "pruned")


def test_longer_work_begins_first_and_results_keep_their_order(lab, tmp_path):
    @dataclass(frozen=True)
    class Wanted:
        minutes: int

        def spec(self, lab):
            return {"minutes": self.minutes}

    begun = []

    def step(lab, wanted):
        def build(folder):
            begun.append(wanted.minutes)
            save_json(folder / "result.json", wanted.minutes)

        return lab.store.make("dull", wanted.spec(lab), build)

    alone = Lab.open(lab.study.model_copy(update={"compute": Compute(workers=1)}), tmp_path)
    wanted = [Wanted(minutes) for minutes in (2, 5, 1, 3)]
    made = make_all(alone, "dull", step, wanted[:1], "dull", work=lambda one: one.minutes)
    made = make_all(alone, "dull", step, wanted, "dull", work=lambda one: one.minutes)
    assert [artefact.json("result") for artefact in made] == [2, 5, 1, 3]
    assert begun == [2, 5, 3, 1]  # the first was there already


def test_sets_that_models_share_are_rendered_once(tmp_path, monkeypatch):
    study = Study.load("tiny")
    rendered = []
    monkeypatch.setattr(stimuli, "run_jobs", lambda step, jobs, **_: rendered.extend(jobs))
    stimuli.render(Store(tmp_path), study.pairs(), lambda task: ("base",), compute=study.compute)
    models = {experiment.model for experiment, task in study.pairs() if task == "number-contact"}
    assert len(models) > 1 and len(rendered) == 9 + 1 + 1  # parts of 500 of train, validation, test


def test_images_are_drawn_by_all_cores_though_a_gpu_takes_one_job_at_a_time(tmp_path, monkeypatch):
    study, counts = Study.load(micro.study(workers="auto")), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("subnet_utils.core.jobs.core_count", lambda: 5)
    monkeypatch.setattr(stimuli, "run_jobs", lambda *_, compute, label: counts.append(worker_count(compute)))
    stimuli.render(Store(tmp_path), study.pairs(), lambda task: ("base",), compute=study.compute)
    assert counts == [5] and worker_count(study.compute) == 1


def test_a_large_set_is_drawn_in_parts_of_which_none_is_drawn_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(stimuli, "PART", 50)
    store, drawn = Store(tmp_path), []
    experiment = Study.load(micro.study()).experiments[1]
    sizes = experiment.data.base.model_copy(update={"train": 130})
    experiment = experiment.model_copy(update={"data": experiment.data.model_copy(update={"base": sizes})})
    options = {"seed": experiment.data.seed, "resolution": experiment.data.resolution}
    whole = shapes.generate("number-contact", "base", 130, split="train", **options).odd_one_out()

    def generate(task, set_name, n, *, first, **options):
        drawn.append((options["split"], first, n))
        return original(task, set_name, n, first=first, **options)

    original = shapes.generate
    monkeypatch.setattr(shapes, "generate", generate)
    parts = stimuli.image_parts(experiment.data, "number-contact", "base", "train")
    stimuli.rendered(store, parts[1])
    stimuli.render(store, [(experiment, "number-contact")], lambda task: ("base",), compute=Compute(workers=1))
    assert [(first, n) for split, first, n in drawn if split == "train"] == [(50, 50), (0, 50), (100, 30)]
    before = list(drawn)
    data = stimuli.load(store, experiment, "number-contact", "base", "train")
    assert torch.equal(data.items, whole.items) and torch.equal(data.kinds, whole.kinds)
    assert torch.equal(data.examples, whole.examples) and drawn == before


def test_a_network_near_collapse_is_pruned_in_float32_and_that_is_told(lab, tmp_path, monkeypatch, capsys):
    """On the way back, too: a GPU's convolutions would take TF32."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    compute = lab.study.compute.model_copy(update={"precision": "bfloat16"})
    other = Lab.open(lab.study.model_copy(update={"compute": compute}), tmp_path)
    network, seen = break_it_down.networks(other.pruned().study, "pruned")[0], []

    def find(model, items, batches, loss, *, autocast, **_):
        with autocast():
            seen.append(torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype)
        seen.append(torch.backends.cudnn.allow_tf32)
        raise TrainingDiverged("that is all")

    monkeypatch.setattr(base_models, "discover", find)
    for smallest, point in zip((-9.0, 9.0), prunings(other, network), strict=True):
        monkeypatch.setattr(base_models, "SMALLEST_MARGIN", smallest)
        told = prune(other, network, point).json("provenance")
        assert (told["precision"], told["device"]) == ("bfloat16" if smallest < 0 else "float32", "cpu")
        assert told.get("near_collapse", False) == ("near collapse" in capsys.readouterr().err) == (smallest > 0)
    assert seen == [torch.bfloat16, True, torch.float32, False]


def test_pruning_zeroes_weights_and_changes_none(lab, pruned):
    _, networks = pruned
    assert [(network.task, network.seed) for network in networks] == [("number-contact", 0), ("number-contact", 1)]
    for network in networks:
        before = dict(load_base(lab, network.trained()).named_parameters())
        after = dict(load_base(lab, network).named_parameters())
        result = train_base(lab, network).json("result")
        kept = sum(int((after[name] != 0).sum()) for name in load_base(lab, network).maskable("stem"))
        assert kept == result["active"] < result["total"]
        for name, weight in after.items():
            assert torch.equal(weight[weight != 0], before[name][weight != 0])


def test_pruned_network_is_the_winner_of_its_settings(lab, pruned):
    network = pruned[1][0]
    points = prunings(lab, network)
    assert points == [(0.01, 0.05), (0.01, 0.0)]
    made = [prune(lab, network, point) for point in points]
    winner = made[best_pruning([artefact.json("result") for artefact in made])]
    subnetwork = Subnetwork.load(winner.path / "subnetwork.safetensors")
    assert train_base(lab, network).json("result")["active"] == subnetwork.active
    assert len(break_it_down.pruned_networks(lab)) == 2


def test_masks_of_pruned_networks_have_effects_of_their_own(lab, pruned):
    table, _ = pruned
    assert set(table["condition"]) == {"pruned"}
    assert not set(table["key"]) & set(break_it_down.effects(lab)["key"])


def test_the_sparsest_of_those_that_keep_the_task_is_taken():
    found = [
        {"validation_accuracy": 0.99, "active": 30}, {"validation_accuracy": 0.91, "active": 20},
        {"fault": "diverged"}, {"validation_accuracy": 0.5, "active": 1},
    ]  # fmt: skip
    assert best_pruning(found) == 1
    assert best_pruning(found[2:]) == 1  # none keeps it: the most accurate
    with pytest.raises(TrainingDiverged, match="no mask came to its end: diverged"):
        best_pruning(found[2:3])


def test_pretrained_networks_differ_from_those_trained_from_scratch(lab):
    scratch, pretrained = break_it_down.train_bases(lab), break_it_down.train_bases(lab.pretrained())
    assert list(pretrained["model"]) == ["bert_micro_lm", "resnet_micro_simclr"]
    assert not set(scratch["key"]) & set(pretrained["key"])
    made = sorted(path.name for path in (lab.store.root / "pretraining").iterdir())
    assert len(made) == 2
    break_it_down.train_bases(lab.pretrained())
    assert made == sorted(path.name for path in (lab.store.root / "pretraining").iterdir())


def test_published_weights_count_by_what_they_are_and_not_by_where_they_lie(tmp_path):
    vocabulary = tokenization.tokenizer().tokens
    sizes = micro.study()["experiments"][0]["architecture"]
    for name, seed in (("a", 0), ("b", 1)):
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(vocabulary), hidden_size=sizes["width"], num_hidden_layers=sizes["layers"],
            num_attention_heads=sizes["heads"], intermediate_size=sizes["mlp_width"],
        )  # fmt: skip
        BertModel(config).save_pretrained(tmp_path / name)
        (tmp_path / name / "vocab.txt").write_text("\n".join(vocabulary))
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    shutil.copytree(tmp_path / "a", tmp_path / "other_words")
    (tmp_path / "other_words" / "vocab.txt").write_text("\n".join((*vocabulary[:4], *reversed(vocabulary[4:]))))

    def spec(folder: str) -> dict:
        made = micro.study()
        experiment = made["experiments"][0] | {"model": "published", "paper_model": "bert_small_lm"}
        experiment["architecture"] = sizes | {"pretrained": str(tmp_path / folder)}
        lab = Lab.open(made | {"pretrained": [experiment]}, tmp_path / "store").pretrained()
        return break_it_down.networks(lab.study)[0].spec(lab)

    assert spec("a") == spec("moved")
    assert spec("a") != spec("b")
    assert spec("a") != spec("other_words")


def test_training_starts_from_the_pretrained_weights(lab, tmp_path):
    """At a learning rate of almost nothing a base model is what it started from, but for SimCLR's head."""
    study = micro.whole_study(precision="float32")
    for experiment in study["pretrained"]:
        experiment["base"] = experiment["base"] | {"learning_rate": 1e-12}
    still = Lab.open(study, lab.store.root)
    for network in break_it_down.networks(still.pretrained().study):
        start = pretrain(still, network).tensors("weights")
        trained = load_base(still, network).state_dict()
        head = {name for name in trained if name.startswith("stages.head.")}
        for name in trained.keys() - head:
            assert torch.allclose(trained[name], start[name], atol=1e-8), name
        assert not head or not torch.allclose(trained["stages.head.hidden.weight"], start["stages.head.hidden.weight"])


def test_the_ledger_has_numbers_both_ways(lab):
    table = ledger.ledger(lab)
    numbers = table[table["quantity"] != ""].set_index("topic")
    theirs = ["small margins", "contact in inside-number", "untrained networks"]
    assert (
        numbers.loc[theirs, "authors_run"].tolist() == [0.41, 0.41, 3]
        and numbers.loc[theirs, "as_printed"].isna().all()
    )
    assert numbers.drop(theirs)[["as_printed", "ours_value"]].notna().all(axis=None)
    assert numbers.drop(theirs)["authors_run"].isna().all()
    assert numbers.drop("small margins")["ours_value"].notna().all()
    overlap = numbers.loc["IoU of Tables 13 and 14"]
    assert overlap["as_printed"] >= overlap["ours_value"]
    assert numbers.loc["few base models", "as_printed"] == pytest.approx(0.0027, abs=1e-4)
    assert numbers.loc["few base models", "ours_value"] == pytest.approx(0.2048, abs=1e-4)
    leak = numbers.loc["sentences in several splits"]
    assert leak["ours_value"] == 0.0
    assert set(ledger.ledger(lab, "06_overlap")["notebook"]) == {"06_overlap"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pruning": {"models": ["resnet_micro"], "tasks": ["inside-contact"]}}, "no experiment has these models"),
        ({"pruning": {"models": ["resnet"], "tasks": ["number-contact"]}}, "no experiment 'resnet'; did you mean"),
        ({"controls": {"draws": 0}}, "controls.draws"),
        ({"controls": {"draw": 9}}, "did you mean 'draws'"),
        ({"pretrained": micro.study()["experiments"][:1]}, "has neither pretraining nor architecture.pretrained"),
    ],
)
def test_impossible_controls_are_refused(change, message):
    study = micro.whole_study()
    if "pretrained" in change:
        change["pretrained"][0] |= {"model": "other", "paper_model": "bert_small_lm"}
    with pytest.raises(StudyError, match=message):
        Study.load(study | change)


def test_pretraining_must_suit_the_network_and_its_place():
    study = micro.whole_study()
    language, contrastive = (experiment["pretraining"] for experiment in study["pretrained"])
    swapped = study | {"pretrained": [study["pretrained"][0] | {"pretraining": contrastive}]}
    with pytest.raises(StudyError, match="simclr is for family resnet, 'bert_micro_lm' is of family bert"):
        Study.load(swapped)
    misplaced = study | {"experiments": [study["experiments"][0] | {"pretraining": language}], "pruning": None}
    with pytest.raises(StudyError, match="move it to 'pretrained'"):
        Study.load(misplaced)


def test_a_lab_without_such_networks_says_so(tmp_path):
    plain = Lab.open(micro.study(), tmp_path)
    with pytest.raises(ValueError, match="has no 'pretrained' experiments"):
        plain.pretrained()
    with pytest.raises(ValueError, match="has no 'pruning'"):
        plain.pruned()
