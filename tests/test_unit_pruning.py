"""A small study of structured pruning from pairs to findings: exact numbers of units, same bits, clear faults."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study, StudyError
from subnet_utils.masks import units
from subnet_utils.papers.heuristic_core import findings, pair_networks, pair_sets, published_cores, steps, tables
from subnet_utils.papers.heuristic_core.fine_tuning import Checkpoint
from subnet_utils.papers.heuristic_core.pair_networks import SPECIAL, PretrainedError, published_tokenizer
from subnet_utils.papers.heuristic_core.section import OwnTransformer
from subnet_utils.papers.heuristic_core.step_training import shuffled_batches
from subnet_utils.tasks import inference, pair_files, sentence_pairs
from subnet_utils.tasks.pair_files import DataError
from subnet_utils.training import TrainingDiverged

PRUNING = {"sparsities": [0.2, 0.5], "seeds": [0, 1], "grid_sparsities": [0.2, 0.5], "grid_seeds": [0, 1], "steps": 12,
           "rate_warmup": 2, "batch_size": 16, "masking": {"start_value": 1.0}, "mean_examples": 40,
           "draws": 2}  # fmt: skip
SECTION = {
    "model": "bert_2x16",
    "architecture": {"family": "bert", "layers": 2, "width": 16, "heads": 2, "mlp_width": 24, "deviation": 0.2},
    "generated": {"counter": 0.1, "train": 120, "test": 40, "each": 10},
    "pretraining": {"pairs": 80, "share": 0.3, "steps": 6, "warmup": 2, "interval": 3},
    "finetuning": {"learning_rate": 0.001, "steps": 10, "interval": 4, "checkpoints": [4]},
    "pruning": PRUNING,
}


def lab_of(folder, **changes) -> Lab:
    section = json.loads(json.dumps(SECTION)) | changes
    return Lab.open(Study.load({"name": "small", "compute": {"workers": 1}, "heuristic_core": section}), folder)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return lab_of(tmp_path_factory.mktemp("units"))


def test_fine_tuning_ends_at_its_last_step_and_keeps_checkpoints(lab):
    table = tables.fine_tuning(lab)
    assert sorted(table["step"].unique()) == [4, 8, 10]
    last = table[table["step"] == 10].set_index("set")["accuracy"]
    assert last["out of domain"] == pytest.approx(last[list(inference.ADVERSE)].mean())
    assert steps.without_heads(lab, ()).result(lab)["accuracies"] == last.drop("out of domain").to_dict()
    early, late = (steps.teacher(lab, step).checkpoint.load(lab) for step in (4, 10))
    assert not early.training and not torch.equal(early.classifier.weight, late.classifier.weight)
    with pytest.raises(ValueError, match=r"no checkpoint at step 5; add it to heuristic_core\.finetuning\.checkpoints"):
        Checkpoint(steps.network(lab), 5)


def test_no_pair_that_networks_are_judged_on_is_read_in_training_or_pretraining(tmp_path):
    own = steps.network(lab_of(tmp_path, pretraining=SECTION["pretraining"] | {"pairs": 3000}))
    judged = own.data.judged()
    assert not judged & sentence_pairs.texts_of(own.data.texts()[0])
    assert len(judged) == 40 + 10 * len(inference.KINDS)
    for pairs in own.pretraining.pairs().values():
        assert not judged & sentence_pairs.texts_of(pairs)
    unasked = inference.mixture({"train": 3000}, counter=0.25, seed=0, about="pretraining")["train"]
    assert judged & sentence_pairs.texts_of(unasked)  # of so many, some would be among them


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_means_of_gated_mlps_are_not_dropped(family):
    """Two equal calls of a network in training: an MLP that is off says its mean, whatever is dropped."""
    own = OwnTransformer(family=family, layers=1, width=8, heads=2, mlp_width=8, dropout=0.5)
    network = pair_networks.own_network(own, "ForSequenceClassification", classes=2, seed=0).train()
    said = []
    gates = {"heads": torch.ones(1, 2), "mlps": torch.zeros(1)}
    with units.gated(network, gates, {"heads": torch.zeros(1, 8), "mlps": torch.ones(1, 8)}):
        block = network.transformer.h[0].mlp if family == "gpt2" else network.base_model.encoder.layer[0].output.dropout
        handle = block.register_forward_hook(lambda _, x, output: said.append(output))
        network(input_ids=torch.tensor([[2, 6, 3]]), attention_mask=torch.ones(1, 3))
        handle.remove()
    assert len(said) == 1 and bool((said[0] == 1).all())


def test_only_prunings_with_dropout_have_new_keys(tmp_path):
    dropped = lab_of(tmp_path, architecture=SECTION["architecture"] | {"dropout": 0.1})
    for lab, version in ((lab_of(tmp_path), 1), (dropped, 2)):
        assert {one.version for one in steps.prunings(lab)} == {version}
        assert steps.teacher(lab).version == 1


def test_every_step_is_named_before_anything_is_made(tmp_path):
    own = lab_of(tmp_path)
    kinds = [type(step).__name__ for step in dict.fromkeys(steps.every_step(own))]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "PairLanguageModel": 1, "PairNetwork": 1, "Teacher": 2, "PrunedUnits": 8, "RandomUnits": 4, "WithoutHeads": 4,
        "Attention": 1}  # fmt: skip
    other = lab_of(tmp_path, generated=SECTION["generated"] | {"seed": 1})
    assert not {step.name for step in steps.every_step(own)} & {step.name for step in steps.every_step(other)}


def test_pruned_networks_have_as_many_units_as_the_target_says(lab):
    table = tables.pruned(lab)
    assert table.groupby(["target_sparsity", "seed"]).size().tolist() == [18] * 4
    for sparsity, group in table.groupby("target_sparsity"):
        assert group["achieved_sparsity"].unique() == pytest.approx([1 - round((1 - sparsity) * 6) / 6])


def test_frequencies_and_the_core_count_heads(lab):
    table, kept = tables.frequencies(lab), tables.kept_heads(lab)
    for row in table.itertuples():
        assert row.lower == sum(int(mask[row.layer, row.head]) for mask in kept[0.2].values())
        networks = [mask for group in kept.values() for mask in group.values()]
        assert row.in_core == all(bool(mask[row.layer, row.head]) for mask in networks)
    names = [tables.name_of(*head) for head in tables.core_of(table)]
    assert names == table[table["in_core"]]["head_name"].tolist()
    gone = tables.kept_mlps(lab)
    assert (gone["mlps_pruned"] <= gone["mlps"]).all() and gone["networks"].tolist() == [2, 2]


def test_random_networks_have_as_many_heads_and_mlps(lab):
    pruned = {(one.sparsity, one.seed): one.load(lab) for one in steps.prunings(lab)}
    assert len(steps.random_units(lab)) == 4
    for one in steps.random_units(lab):
        found, like = one.units(lab).masks, pruned[one.like[0].sparsity, one.draw % 2].masks
        assert all(found[name].sum() == mask.sum() for name, mask in like.items())
    assert len(tables.random_units(lab)) == 4 * 18


def test_ablations_take_out_one_head_the_core_and_as_many_others(lab):
    core = ((0, 1),)
    table = tables.ablations(lab, core)
    assert table["ablated"].nunique() == 6 and table[table["ablated"] == "others"]["draw"].nunique() == 2
    single = table[table["ablated"] == "L0.H1"].set_index("set")["accuracy"]
    joint = table[table["ablated"] == "core"].set_index("set")["accuracy"]
    pd.testing.assert_series_equal(single, joint)  # a core of one head


def test_the_strongest_heads_are_taken_out_at_once(lab):
    lost = findings.drops(tables.ablations(lab, ()), inference.ADVERSE)
    most = lost.nlargest(3, "out_of_domain")["ablated"].tolist()
    found = tables.strongest(lab, lost)
    assert found["ablated"].unique().tolist() == ["+".join(most)]
    (left,) = (head for head in steps.every_head(lab) if tables.name_of(*head) not in most)
    alone = steps.WithoutHeads(steps.teacher(lab), "mean", tuple(one for one in steps.every_head(lab) if one != left))
    assert found.set_index("set")["accuracy"].to_dict() == alone.result(lab)["accuracies"]
    table = findings.ablation_table(lost, findings.drops(found, inference.ADVERSE)).set_index("ablated")
    each = lost.nlargest(3, "out_of_domain")["out_of_domain"].sum()
    assert table["out_of_domain"].iloc[-1] == pytest.approx(table["out_of_domain"].iloc[-2] - each)


def test_tables_of_the_grid_fit_together(lab):
    sizes = tables.sizes(lab)
    assert set(sizes["step"]) == {4, 10}
    assert set(sizes["domain"]) == {"in domain", "out of domain", "mixed", "entailed", "balanced"}
    assert sizes["effective_size"].isin([1.0, 0.8, 0.5]).all()
    table = tables.by_sparsity(lab)
    assert sorted(table["sparsity"].unique()) == [0.0, 0.2, 0.5]
    core = tables.core_of(tables.frequencies(lab))
    assert tables.checkpoint_heads(lab, core)["step"].tolist() == [4, 4, 10, 10]
    assert len(tables.attention(lab, core)) == 4
    attention, tokens = tables.attention_map(lab, 1, 0)
    assert attention.shape == (len(tokens), len(tokens)) and tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"


def test_entailed_sets_stand_beside_those_out_of_domain(lab):
    every = tables.pruned(lab).query("seed == 0 and target_sparsity == 0.5")
    main = tables.main_sets(lab, tables.pruned(lab)).query("seed == 0 and target_sparsity == 0.5")
    mean = every[every["set"].isin(inference.FRIENDLY)]["accuracy"].mean()
    assert main.set_index("set")["accuracy"]["entailed"] == pytest.approx(mean)
    assert len(main) == 1 + len(inference.ADVERSE) + 1
    domains = tables.by_domain(lab, every, ["target_sparsity", "seed"]).set_index("domain")["accuracy"]
    assert domains["balanced"] == pytest.approx((domains["out of domain"] + mean) / 2)
    assert "OOD-E" not in domains
    of_gpt2 = lab_of(lab.store.root, paper_network="gpt2_mnli")
    two = ("subsequence_se_relative_clause_on_obj", "constituent_ce_embedded_under_since")
    every = every.assign(set=every["set"].replace(dict(zip(inference.FRIENDLY, two, strict=False))))
    expected = every[every["set"].isin(two)]["accuracy"].mean()
    domains = tables.by_domain(of_gpt2, every, ["target_sparsity", "seed"]).set_index("domain")["accuracy"]
    assert domains["OOD-E"] == pytest.approx(expected) and domains["entailed"] == pytest.approx(mean)


def test_what_is_made_twice_has_the_same_bits(lab, tmp_path):
    again = lab_of(tmp_path)
    one, other = (steps.prunings(where)[-1].make(where) for where in (lab, again))
    assert one.digest == other.digest and one.key == other.key


@pytest.mark.parametrize("family", ["roberta", "gpt2"])
def test_other_families_go_the_same_way(tmp_path, family):
    own = lab_of(tmp_path, architecture=SECTION["architecture"] | {"family": family})
    table = tables.pruned(own)
    assert len(table) == 4 * 18 and np.isfinite(table["accuracy"]).all()
    assert len(tables.attention(own, ())) == 4


def test_hidden_words_are_learned(tmp_path):
    longer = SECTION["pretraining"] | {"steps": 120, "learning_rate": 0.01, "interval": 40, "pairs": 400}
    own = lab_of(tmp_path, pretraining=longer)
    history = steps.network(own).pretraining.make(own).table("history")
    assert history["step"].tolist() == [40, 80, 120]
    assert history["train_loss"].iloc[-1] < history["train_loss"].iloc[0] - 0.3


@pytest.mark.parametrize("lengths", [None, torch.arange(1000) % 97])
def test_a_pass_takes_every_row_once_and_batches_of_like_length_have_less_padding(lengths):
    batches = shuffled_batches(1000, 16, torch.Generator().manual_seed(0), lengths)
    assert torch.cat(list(batches)).sort().values.equal(torch.arange(1000))
    again = shuffled_batches(1000, 16, torch.Generator().manual_seed(1), lengths)
    assert not torch.cat(list(batches)).equal(torch.cat(list(again)))
    if lengths is not None:
        padded = sum(len(rows) * int(lengths[rows].max()) for rows in batches) / int(lengths.sum())
        plain = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).split(16)
        assert padded < 1.2 < 1.7 < sum(len(rows) * int(lengths[rows].max()) for rows in plain) / int(lengths.sum())


def test_a_pruning_that_diverges_is_recorded_and_left_out(lab, tmp_path, monkeypatch):
    real = steps.units.prune

    def prune(*arguments, seed, **options):
        if seed == 1:
            raise TrainingDiverged("loss is not finite")
        return real(*arguments, seed=seed, **options)

    monkeypatch.setattr(steps.units, "prune", prune)
    own = lab_of(tmp_path)
    assert sorted(tables.pruned(own)["seed"].unique()) == [0]
    assert [len(masks) for masks in tables.kept_heads(own).values()] == [1, 1]
    assert len(tables.random_units(own)) == 4 * 18  # all like the networks that are left


@pytest.fixture
def files(tmp_path):
    """Pairs with three labels, HANS-like pairs, and a published BERT, in a folder."""
    pairs = inference.mixture({"train": 60}, counter=0.2, seed=0)["train"]
    names = ["entailment" if label == 0 else ("neutral", "contradiction")[i % 2]
             for i, label in enumerate(pairs["label"])]  # fmt: skip
    train = pairs.assign(label=names).drop(columns="kind")
    train.to_csv(tmp_path / "mnli.tsv", sep="\t", index=False)
    parts = [inference.generate(kind, 6, seed=0, split="hans") for kind in inference.KINDS]
    hans = pd.concat(parts).rename(columns={"kind": "subcase"})
    with gzip.open(tmp_path / "hans.tsv.gz", "wt") as file:
        hans.to_csv(file, sep="\t", index=False)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *inference.words()]))
    weights = tmp_path / "bert"
    transformers.BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(weights)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(inference.words()), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=64)  # fmt: skip
    transformers.BertModel(config).save_pretrained(weights)
    return tmp_path


def from_files(folder, **changes) -> dict:
    data = {"train": str(folder / "mnli.tsv"), "hans": str(folder / "hans.tsv.gz"), "held_out": 12, "each": 5}
    own = {"generated": None, "files": data | changes, "pretraining": None}
    return own | {"architecture": {"family": "published", "weights": str(folder / "bert"), "max_length": 32}}


def test_mismatched_pairs_are_a_set_of_their_own_in_all_classes(files):
    """The same 60 pairs that are trained on, so that their accuracy is known; no old name of a step changes."""
    train = pd.read_csv(files / "mnli.tsv", sep="\t")
    train.iloc[:30].to_csv(files / "more.tsv", sep="\t", index=False)
    own = lab_of(files / "store", **from_files(files, mismatched=str(files / "more.tsv")))
    pairs, network = steps.network(own).pairs(), steps.teacher(own).checkpoint.load(own)
    with torch.no_grad():
        says = network(**pairs.sets["mismatched"].inputs).logits.argmax(dim=-1)
    numbers = train["label"].iloc[:30].map(list(pair_files.CLASSES).index)
    right = float((says.numpy() == numbers.to_numpy()).mean())
    table = tables.main_sets(own, tables.pruned(own))
    assert list(dict.fromkeys(table["set"]))[:2] == ["in domain", "mismatched"]
    assert table.set_index("set")["full"]["mismatched"].unique() == [right]
    assert set(tables.by_domain(own, tables.pruned(own), ["seed"])["domain"]) == {
        "in domain", "out of domain", "mixed", "entailed", "balanced"}  # fmt: skip
    assert "mismatched" not in set(findings.differing(table)["set"])
    assert findings.with_paper(findings.spread(table, tables.set_sizes(own)), published_cores.spread("roberta_mnli"))[
        "paper_mean"].dropna().iloc[1] == 0.848  # fmt: skip


def test_published_weights_are_fine_tuned_and_pruned_on_files(files):
    own = lab_of(files / "store", **from_files(files))
    table = tables.pruned(own)
    sizes = tables.set_sizes(own)
    assert sizes["in domain"] == 12 and sizes[pair_files.MAIN_SUBCASES[0]] == 5 and len(sizes) == 19
    assert sizes["entailed"] == 5 * len(inference.FRIENDLY)
    assert len(table) == 4 * 18 and own.study.heuristic_core.data.classes == pair_files.CLASSES
    _, tokens = tables.attention_map(own, 0, 0)
    assert tokens[0] == "[CLS]"


@pytest.mark.parametrize("classes", [2, 3])
def test_a_published_classifier_gives_way_to_a_new_one(files, classes):
    """Of as many classes as ours, or of another number. What the network is made of counts, not its classifier."""
    place = str(files / "bert")
    before = pair_networks.published_facts(place, 32)
    network = pair_networks.published_network(place, classes=classes, seed=7)
    network.save_pretrained(place)
    pair_networks.published_facts.cache_clear()
    assert pair_networks.published_facts(place, 32)[1] == before[1]
    again = pair_networks.published_network(place, classes=3, seed=0)
    assert again.classifier.weight.shape == (3, 16)
    assert torch.equal(
        again.bert.encoder.layer[0].output.dense.weight, network.bert.encoder.layer[0].output.dense.weight
    )
    assert classes != 3 or not torch.equal(again.classifier.weight, network.classifier.weight)
    weights = load_file(files / "bert" / "model.safetensors")
    weights["bert.encoder.layer.1.output.dense.bias"] = torch.zeros(15)
    save_file(weights, files / "bert" / "model.safetensors", {"format": "pt"})
    with pytest.raises(PretrainedError, match=r"lacks 1 weights, such as 'bert.encoder.layer.1.output.dense.bias"):
        pair_networks.published_network(place, classes=2, seed=0)


def test_published_networks_that_lack_weights_or_words_are_refused(files):
    path = files / "bert" / "model.safetensors"
    weights = load_file(path)
    save_file({name: tensor for name, tensor in weights.items() if "layer.1." not in name}, path, {"format": "pt"})
    with pytest.raises(PretrainedError, match=r"lacks 16 weights, such as 'bert.encoder.layer.1.*fetch its model"):
        pair_networks.published_network(str(files / "bert"), classes=2, seed=0)
    without_pooler = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(without_pooler, path, {"format": "pt"})
    pair_networks.published_network(
        str(files / "bert"), classes=2, seed=0
    )  # the pooler is as new as the classifier then
    for name in ("tokenizer.json", "vocab.txt"):
        (files / "bert" / name).unlink(missing_ok=True)
    with pytest.raises(PretrainedError, match="the tokenizer of '.*bert' has no words; put its tokenizer.json beside"):
        published_tokenizer(str(files / "bert"))


def test_code_beside_a_tokenizer_is_neither_run_nor_asked_about(files, capsys):
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoTokenizer": ["own.Words", None]}}
    for name in ("config.json", "tokenizer_config.json"):
        (files / "bert" / name).write_text(json.dumps(own | {"tokenizer_class": "Words"}))
    (files / "bert" / "own.py").write_text("raise SystemExit('code of a folder has run')")
    with pytest.raises(PretrainedError, match=r"bert': tokenizer cannot be loaded \(.*custom code[^\n]*$"):
        published_tokenizer(str(files / "bert"))
    assert "[y/N]" not in capsys.readouterr().out


def test_pairs_longer_than_a_published_network_takes_are_refused_at_once(files):
    section = from_files(files)
    section["architecture"]["max_length"] = 65
    with pytest.raises(PretrainedError, match="has 64 positions, fewer than max_length 65; set heuristic_core"):
        tables.pruned(lab_of(files / "store", **section))


def test_questions_are_judged_on_those_that_mean_the_same_and_on_those_that_do_not(files):
    """QQP and PAWS: the class that means yes is the second one, and the set that defies the heuristic is named."""
    pairs = inference.mixture({"train": 80, "paws": 40}, counter=0.2, seed=0)
    for name, own in pairs.items():
        columns = {"sentence1": own["premise"], "sentence2": own["hypothesis"], "label": 1 - own["label"]}
        pd.DataFrame(columns).to_csv(files / f"{name}.tsv", sep="\t", index=False)
    section = from_files(files)
    section["files"] = {"train": str(files / "train.tsv"), "paws": str(files / "paws.tsv"), "held_out": 20,
                        "classes": ["different", "same"], "entailed": "same",
                        "out_of_domain": [sentence_pairs.DIFFERENT]}  # fmt: skip
    own = lab_of(files / "store", **section)
    table = tables.pruned(own)
    sizes = {"in domain": 20, sentence_pairs.SAME: 20, sentence_pairs.DIFFERENT: 20, "entailed": 20}
    assert tables.set_sizes(own) == sizes
    examples = tables.examples(own).set_index("set")
    assert examples["follows"].drop("in domain").to_dict() == {"PAWS (adv.)": "no", "PAWS (equivalent)": "yes"}
    assert set(table["name"]) == {"in domain", "PAWS (adv.)", "PAWS (equivalent)"}
    network, data = steps.teacher(own).checkpoint.load(own), steps.network(own).pairs()
    with torch.no_grad():
        says = network(**data.sets[sentence_pairs.DIFFERENT].inputs).logits.argmax(dim=-1)
    right = float((says == 0).double().mean())  # "different", the first class
    assert table.set_index("set")["full"][sentence_pairs.DIFFERENT].unique() == [right]
    lost = findings.drops(tables.ablations(own, ()), (sentence_pairs.DIFFERENT,))
    assert np.isfinite(lost["entailed"]).all()


def test_names_of_artefacts_follow_the_files_content_and_not_their_place(files):
    """And files that change while a study runs are refused."""

    def network(**changes) -> steps.PairNetwork:
        return steps.network(lab_of(files / "store", **from_files(files, **changes)))

    own, moved = network(), files / "moved.tsv"
    moved.write_bytes((files / "mnli.tsv").read_bytes())
    with (files / "mnli.tsv").open("a") as file:
        file.write("a\tb\tneutral\n")
    steps.network.cache_clear()
    assert network(train=str(moved)).name == own.name != network().name
    with pytest.raises(DataError, match="has changed while this ran; run again"):
        own.data.texts()


def test_without_data_steps_have_names_but_the_notebook_is_refused(files):
    """So that a cluster's jobs can be listed anywhere."""
    absent = {"architecture": {"family": "published", "weights": str(files / "none")}}
    own = lab_of(files / "store", **from_files(files, train="nowhere.tsv") | absent)
    assert len(list(steps.every_step(own))) == 1 + 2 + 8 + 4 + 4 + 1
    with pytest.raises(PretrainedError, match="cannot be loaded"):
        pair_sets.require_pairs(own)
    with pytest.raises(DataError, match="no file"):
        pair_sets.require_pairs(lab_of(files / "store", **from_files(files, train="nowhere.tsv")))
    many = lab_of(files / "store", generated=SECTION["generated"] | {"each": 3000})
    with pytest.raises(ValueError, match=r"heuristic_core\.generated: there are not 3,000 distinct pairs"):
        pair_sets.require_pairs(many)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"held_out": 60}, "cannot be held out; lower held_out"),
        ({"classes": ["entailment", "neutral"]}, "unknown label 'contradiction'"),
        ({"out_of_domain": ["constituent_cn_disjunction"]}, "has no pair of 'constituent_cn_disjunction'"),
    ],
)
def test_files_that_do_not_fit_are_refused_before_any_training(files, change, message):
    with pytest.raises(DataError, match=message):
        tables.fine_tuning(lab_of(files / "store", **from_files(files, **change)))


HANS, PAWS = {"train": "a", "hans": "b"}, {"train": "a", "paws": "b"}


@pytest.mark.parametrize(("path", "value", "message"), [
    ("pruning.sparsities", [0.5, 1.0], "less than 1"),
    ("pruning.sparsities", [0.5, 0.2], "give the lower one first"),
    ("pruning.sparsities", [0.5], "2"),
    ("pruning.rate_warmup", 12, "fewer than steps 12"),
    ("finetuning.checkpoints", [5], "is not a multiple of interval 4"),
    ("finetuning.checkpoints", [12], "below steps 10"),
    ("pretraining.warmup", 6, "fewer than steps 6"),
    ("architecture.heads", 3, "16 is not a multiple of heads 3"),
    ("generated", None, "give either 'generated' or 'files'"),
    ("generated.counter", 0.6, "0.5"),
    ("architecture.family", "bart", "bert"),
    ("files", HANS, "give either 'generated' or 'files'"),
    ("files", HANS | PAWS, "give either 'hans' or 'paws'"),
    ("files", {"train": "a"}, "give either 'hans' or 'paws'"),
    ("files", HANS | {"entailed": "entailmnt"}, "did you mean 'entailment'"),
    ("files", PAWS | {"entailed": "entailment"}, "PAWS has no 'lexical_overlap_ln_subject-object"),
    ("files", PAWS, "name the class that means the same"),
    ("files", HANS | {"out_of_domain": ["constituent_ce_adverb"]}, "is entailed, as the heuristic"),
    ("files", HANS | {"out_of_domain": ["adverbs"]}, "'adverbs' is no subcase of HANS"),
    ("paper_network", "bert_mnl", "bert_mnli"),
    ("pruning.masking", "magnitude", "'magnitude' ranks weights and cannot prune heads; take one that trains"),
    ("pruning.masking", {"method": "hard_concrete", "units": "neurons"}, "heads and MLPs are pruned whole in any case"),
])  # fmt: skip
def test_sections_that_make_no_sense_are_refused(path, value, message):
    section = json.loads(json.dumps(SECTION))
    *parents, last = path.split(".")
    place = section[parents[0]] if parents else section
    place[last] = value
    with pytest.raises(StudyError, match=message):
        Study.load({"name": "small", "heuristic_core": section})


def test_files_want_published_weights_and_those_no_pretraining():
    with pytest.raises(StudyError, match="take 'published'"):
        Study.load({"name": "small", "heuristic_core": SECTION | {"generated": None, "files": HANS}})
    both = SECTION | {"architecture": {"family": "published", "weights": "x"}}
    with pytest.raises(StudyError, match="pretrained already"):
        Study.load({"name": "small", "heuristic_core": both})


@pytest.mark.parametrize("family", ["roberta", "gpt2"])
def test_published_networks_of_other_families_are_pruned_too(files, family):
    """With byte pairs as theirs; GPT-2 has no padding token and numbers no sentences."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if family == "roberta" else ["<|endoftext|>"]
    pairs = pd.read_csv(files / "mnli.tsv", sep="\t")
    weights, name = files / family, {"roberta": "Roberta", "gpt2": "GPT2"}[family]
    words = getattr(transformers, f"{name}TokenizerFast")(vocab={one: i for i, one in enumerate(special)}, merges=[])
    texts = pd.concat([pairs["premise"], pairs["premise"].str.capitalize()])
    tokenizer = words.train_new_from_iterator(texts, vocab_size=600)
    tokenizer.save_pretrained(weights)
    roberta = {"pad_token_id": 1, "intermediate_size": 24}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=60, **roberta if family == "roberta" else {"bos_token_id": 0, "eos_token_id": 0},
    )  # fmt: skip
    getattr(transformers, f"{name}Model")(config).save_pretrained(weights)
    section = from_files(files)
    section["architecture"] = {"family": "published", "weights": str(weights), "max_length": 48}
    own = lab_of(files / "store", **section)
    table = tables.pruned(own)
    assert len(table) == 4 * 18 and np.isfinite(table["accuracy"]).all()
    attention = tables.attention(own, ())
    assert len(attention) == 4 and attention["repeated"].gt(0).all()
    assert attention["next"].isna().all() == (family == "gpt2")
    network = steps.network(own)
    read_as_text_and_by_words(network.pairs().train, pairs, tokenizer, network.transformer.word_numbers())


def read_as_text_and_by_words(train, pairs: pd.DataFrame, tokenizer, numbers: torch.Tensor) -> None:
    """What a network takes says what the pairs say, and a word has one number at a sentence's start and within it."""
    texts = {(row.premise, row.hypothesis) for row in pairs.itertuples()}
    for tokens, segments in zip(train.inputs["input_ids"], train.segments, strict=True):
        sides = [tokens[segments == side] for side in (0, 1)]
        assert tuple(map(tokenizer.decode, sides)) in texts
        words = [tokenizer.decode(side).split() for side in sides]
        assert set(numbers[sides[1]].tolist()) <= set(numbers[sides[0]].tolist()) or not set(words[1]) <= set(words[0])
    written = [tokenizer.encode(text, add_special_tokens=False) for text in (" the", "the", "The")]
    assert [len(tokens) for tokens in written] == [1, 1, 1] and len({tokens[0] for tokens in written}) == 3
    assert len(set(numbers[torch.tensor(written)[:, 0]].tolist())) == 1
