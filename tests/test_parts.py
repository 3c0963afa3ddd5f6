"""A study in parts: their artefacts are those of the whole, and every process has a GPU of its own."""

import os

import pytest

from subnet_utils import shards as parts
from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study, StudyError
from subnet_utils.papers.break_it_down.tables import candidates, effects, networks
from tests import micro


@pytest.fixture
def study() -> Study:
    return Study.load(micro.study(workers=1))


@pytest.fixture(autouse=True)
def gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("SUBNET_ARTIFACTS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_parts_cover_the_study_once(study):
    names = study.parts()
    assert names == [f"{m}/{t}/{s}" for m, t in (("bert_micro", "sv-agreement-singular"),
                     ("resnet_micro", "number-contact")) for s in (0, 1)]  # fmt: skip
    bases = [network for name in names for network in networks(study.part(name))]
    lab = Lab.open(study)
    assert [network.spec(lab) for network in bases] == [network.spec(lab) for network in networks(study)]
    assert study.part(names[0]).vit_search is None


def test_a_part_makes_the_artefacts_of_the_whole(study, tmp_path, capsys):
    parts.make(study.part("bert_micro/sv-agreement-singular/1"))
    assert "4 masks attempted, 4 used" in capsys.readouterr().out
    whole = Lab.open(study)
    (network,) = [n for n in networks(study) if (n.task, n.seed) == ("sv-agreement-singular", 1)]
    assert whole.store.find("base", network.spec(whole))
    assert all(whole.store.find("mask", mask.spec(whole)) for mask in candidates(network))
    before = len(list((tmp_path / "effect").iterdir()))
    effects(whole)
    assert before == 8 and len(list((tmp_path / "effect").iterdir())) == 20  # 4 of them over an untrained network
    assert all(len(list((tmp_path / kind).iterdir())) == 4 for kind in ("null", "ablations"))


def test_pretrained_networks_are_parts_too_and_pruned_ones_belong_to_theirs():
    study = Study.load(micro.whole_study())
    assert study.parts()[-2:] == ["bert_micro_lm/sv-agreement-singular/0", "resnet_micro_simclr/number-contact/0"]
    pretrained = study.part("bert_micro_lm/sv-agreement-singular/0")
    assert [e.model for e in pretrained.experiments] == ["bert_micro_lm"] and not pretrained.to_prune()
    (pruned,) = study.part("resnet_micro/number-contact/1").to_prune()
    assert pruned.base.seeds == (1,)


def test_unknown_part_or_profile_is_one_line(study, capsys):
    with pytest.raises(
        StudyError, match=r"no part 'bert_micro/sv-agreement-singular/2' of profile 'micro'; did you mean"
    ):
        study.part("bert_micro/sv-agreement-singular/2")
    assert parts.main(["tyni"]) == 2 and parts.main(["tiny", "bert/x/0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "did you mean 'tiny'?" in lines[0] and "no part 'bert/x/0'" in lines[1]
    assert parts.main(["tiny"]) == 0
    assert capsys.readouterr().out.splitlines() == Study.load("tiny").parts()


def test_every_process_gets_a_gpu_of_its_own_and_waits_for_one(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    with parts.own_gpu() as first:
        assert (first, os.environ["CUDA_VISIBLE_DEVICES"]) == ("3", "3")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
        with parts.own_gpu() as second:
            assert second == "GPU-5"
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
            monkeypatch.setattr(parts.time, "sleep", lambda _: (_ for _ in ()).throw(TimeoutError("waits")))
            with pytest.raises(TimeoutError, match="waits"), parts.own_gpu():
                pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    with parts.own_gpu() as again:
        assert again == "3"


def test_the_one_gpu_that_slurm_gives_a_job_stays_and_several_are_shared_out(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with parts.own_gpu() as one, parts.own_gpu() as same:
        assert one == same == os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with parts.own_gpu() as first:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        with parts.own_gpu() as second:
            assert (first, second) == ("0", "1")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        monkeypatch.setenv("SLURM_JOB_ID", "8")  # other cards, which are numbered from 0 there, too
        with parts.own_gpu() as others:
            assert others == "0"


def test_without_a_gpu_nothing_is_waited_for():
    with parts.own_gpu() as gpu:
        assert gpu is None
