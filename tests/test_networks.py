"""Base models of every condition at the smallest size: trained, pretrained, pruned; and the sets that they share."""

import shutil
from dataclasses import replace

import pytest
import torch
from transformers import BertConfig, BertModel

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all, missing
from subnet_utils.masks import masking
from subnet_utils.papers.break_it_down import ledger, networks, sets, tables
from subnet_utils.tasks import shapes, tokenization
from subnet_utils.training import TrainingDiverged
from tests import micro


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(micro.whole_study(precision="float32"), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def pruned(lab):
    found = networks.pruned_bases(lab)
    make_all(lab, found, "pruned")
    return found


def test_sets_that_models_share_are_drawn_once(tmp_path):
    lab = Lab.open("tiny", tmp_path)
    experiments = lab.study.break_it_down.experiments
    drawn = [step for step in missing(lab, networks.bases(lab)) if isinstance(step, sets.Drawing)]
    assert len([e for e in experiments if e.modality == "vision"]) > 1 and len(drawn) == 9 + 1 + 1  # parts of 500


def test_a_large_set_is_drawn_in_parts_of_which_none_is_drawn_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "PART", 50)
    sets.example_set.cache_clear()
    lab, drawn = Lab.open(micro.study(), tmp_path), []
    data = lab.study.break_it_down.experiments[1].data
    data = data.model_copy(update={"base": data.base.model_copy(update={"train": 130})})
    options = {"seed": data.seed, "resolution": data.resolution}
    whole = shapes.generate("number-contact", "base", 130, split="train", **options).odd_one_out()
    original = shapes.generate

    def generate(task, set_name, n, *, first, **options):
        drawn.append((first, n))
        return original(task, set_name, n, first=first, **options)

    monkeypatch.setattr(shapes, "generate", generate)
    images = sets.example_set(data, "number-contact", "base", "train")
    images.parts[1].make(lab)
    found = images.load(lab)
    assert drawn == [(50, 50), (0, 50), (100, 30)]
    assert torch.equal(found.items, whole.items) and torch.equal(found.kinds, whole.kinds)
    assert torch.equal(found.examples, whole.examples)


def test_a_network_near_collapse_is_pruned_in_float32(lab, tmp_path, monkeypatch):
    """On the way back, too: a GPU's convolutions would take TF32."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    compute = lab.study.compute.model_copy(update={"precision": "bfloat16"})
    other, seen = Lab.open(lab.study.model_copy(update={"compute": compute}), tmp_path), []

    def find(*_, autocast, **__):
        with autocast():
            seen.append(torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype)
        seen.append(torch.backends.cudnn.allow_tf32)
        raise TrainingDiverged("that is all")

    monkeypatch.setattr(masking.ContinuousSparsification, "find", find)
    candidates = networks.pruned_bases(other)[0].candidates
    for smallest, candidate in zip((-9.0, 9.0), candidates, strict=True):
        monkeypatch.setattr(networks, "SMALLEST_MARGIN", smallest)
        about = candidate.make(other).json("provenance")
        assert (about["precision"], about["device"]) == ("bfloat16" if smallest < 0 else "float32", "cpu")
        assert about.get("near_collapse", False) == (smallest > 0)
    assert seen == [torch.bfloat16, True, torch.float32, False]


@pytest.mark.parametrize(("smallest", "said"), [(-9.0, 0), (9.0, 1)])
def test_a_network_that_is_unsure_says_so_once(lab, tmp_path, monkeypatch, capsys, smallest, said):
    """When it is filed, not with every mask; one that was never trained says nothing."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(networks, "SMALLEST_MARGIN", smallest)
    compute = lab.study.compute.model_copy(update={"precision": "bfloat16"})
    other, base = Lab.open(lab.study.model_copy(update={"compute": compute}), tmp_path), networks.bases(lab)[0]
    for network in (base, base.untrained()):
        network.file(other, tmp_path, network.fresh(), epochs=0, best_epoch=0)
    assert capsys.readouterr().err.count("it is unsure of its answers") == said


def test_pruning_zeroes_weights_and_changes_none(lab, pruned):
    assert [(network.task, network.seed) for network in pruned] == [("number-contact", 0), ("number-contact", 1)]
    for network in pruned:
        before, after = (dict(one.load(lab).named_parameters()) for one in (network.trained, network))
        kept = sum(int((after[name] != 0).sum()) for name in network.load(lab).maskable("stem"))
        assert kept == network.result(lab)["active"] < network.result(lab)["total"]
        for name, weight in after.items():
            assert torch.equal(weight[weight != 0], before[name][weight != 0])


def test_masks_of_pruned_networks_have_effects_of_their_own(lab, pruned):
    table = tables.effects(lab, pruned)
    assert set(table["condition"]) == {"pruned"}
    assert not set(table["key"]) & set(tables.effects(lab)["key"])


def test_pretrained_networks_start_from_weights_that_are_made_once(lab):
    """At a learning rate of almost nothing a base model is what it started from, but for SimCLR's head."""
    for network in networks.pretrained_bases(lab):
        still = replace(network, training=network.training.model_copy(update={"learning_rate": 1e-12}))
        start, trained = network.pretraining.make(lab).tensors("weights"), still.load(lab).state_dict()
        head = {name for name in trained if name.startswith("stages.head.")}
        for name in trained.keys() - head:
            assert torch.allclose(trained[name], start[name], atol=1e-8), name
        assert not head or not torch.allclose(trained["stages.head.hidden.weight"], start["stages.head.hidden.weight"])
        assert network.key(lab) not in {one.key(lab) for one in networks.bases(lab)}
    assert len(list(lab.store.root.glob("break_it_down-pretraining/*"))) == 2


def test_published_weights_count_by_what_they_are_and_not_by_where_they_lie(tmp_path):
    vocabulary = tokenization.tokenizer().tokens
    sizes = micro.study()["break_it_down"]["experiments"][0]["architecture"]
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

    def name(folder: str) -> str:
        made = micro.language()
        experiment = made["break_it_down"]["experiments"][0] | {"model": "published", "paper_model": "bert_small_lm"}
        experiment["architecture"] = sizes | {"pretrained": str(tmp_path / folder)}
        return networks.pretrained_bases(Lab.open(micro.but(made, pretrained=[experiment]), tmp_path))[0].name

    assert name("a") == name("moved")
    assert len({name("a"), name("b"), name("other_words")}) == 3


def test_the_ledger_has_numbers_both_ways(lab):
    table = ledger.ledger(lab)
    numbers = table[table["quantity"] != ""].set_index("topic")
    theirs = ["small margins", "contact in inside-number", "untrained networks"]
    assert numbers.loc[theirs, "authors_run"].tolist() == [0.41, 0.41, 3]
    assert numbers.loc[theirs, "as_printed"].isna().all()
    assert numbers.drop(theirs)[["as_printed", "ours_value"]].notna().all(axis=None)
    overlap = numbers.loc["IoU of Tables 13 and 14"]
    assert overlap["as_printed"] >= overlap["ours_value"]
    assert numbers.loc["few base models", "as_printed"] == pytest.approx(0.0027, abs=1e-4)
    assert numbers.loc["few base models", "ours_value"] == pytest.approx(0.2048, abs=1e-4)
    assert numbers.loc["sentences in several splits", "ours_value"] == 0.0
    assert set(ledger.ledger(lab, "06_overlap")["notebook"]) == {"06_overlap"}
