"""Image classifiers compute what torchvision's and transformers' own networks compute."""

import shutil

import pytest
import safetensors.torch
import torch
import torchvision
from transformers import ViTConfig, ViTModel

from subnet_utils.models import build
from subnet_utils.models.classifiers import WeightsError

SMALL = {"family": "resnet_classifier", "classes": 4, "depths": [1, 1, 1, 1], "width": 8}
VIT = {"family": "vit_classifier", "classes": 5, "layers": 2, "width": 16, "heads": 2, "mlp_width": 32}


@pytest.fixture(scope="module")
def resnet18():
    torch.manual_seed(0)
    network = torchvision.models.resnet18().eval()
    for name, buffer in network.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 2)
    return network


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    network = ViTModel(ViTConfig(**sizes, image_size=32, patch_size=16), add_pooling_layer=False).eval()
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.2)
    folder = tmp_path_factory.mktemp("vit")
    network.save_pretrained(folder)
    return network, folder


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_resnet18_is_torchvisions(resnet18, tmp_path, ending):
    path = tmp_path / f"weights.{ending}"
    if ending == "pth":
        torch.save(resnet18.state_dict(), path)
    else:
        safetensors.torch.save_file(resnet18.state_dict(), path)
    ours = build({"family": "resnet_classifier", "classes": 1000, "pretrained": str(path)}, seed=0).eval()
    ours.stages["classifier"].fc.load_state_dict(resnet18.fc.state_dict())
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    mean, std = (torch.tensor(x)[:, None, None] for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), resnet18((images / 255 - mean) / std))


def test_the_vit_is_transformers(vit):
    network, folder = vit
    ours = build(VIT | {"pretrained": str(folder)}, seed=0, resolution=32).eval()
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        features = network((images - 0.5) / 0.5).last_hidden_state[:, 0]
        torch.testing.assert_close(ours(images), ours.stages["classifier"].fc(features), atol=1e-5, rtol=1e-5)


def test_no_mask_covers_the_classifier():
    for description, sizes in ((SMALL, {}), (VIT, {"resolution": 32})):
        model = build(description, seed=0, **sizes)
        names = model.maskable(model.stage_names[0])
        assert names and not any("classifier" in name for name in names)
        _, suffix = model.cut(model.stage_names[1])
        assert not any("classifier" in name for name in suffix.maskable(model.stage_names[1]))


def test_group_normalization_has_no_running_statistics():
    assert not dict(build(SMALL | {"norm": "group"}, seed=0).named_buffers())
    assert dict(build(SMALL, seed=0).named_buffers())


def drop(path, part: str) -> None:
    """Take the weights out of a file whose names have this part."""
    weights = safetensors.torch.load_file(path)
    left = {name: tensor for name, tensor in weights.items() if part not in name.replace("encoder.layer.", "layers.")}
    assert 0 < len(left) < len(weights)
    safetensors.torch.save_file(left, path, {"format": "pt"})


def test_weights_that_cannot_be_had_or_do_not_fit_are_named(resnet18, vit, tmp_path):
    def refused(description, match, **sizes):
        with pytest.raises(WeightsError, match=match):
            build(description, seed=0, **sizes)

    resnet = {"family": "resnet_classifier", "classes": 4}
    refused(resnet | {"pretrained": str(tmp_path / "nothing.pth")}, "no file .*nothing.pth")
    damaged = tmp_path / "damaged.pth"
    damaged.write_bytes(b"PK\x03\x04 damaged")
    refused(resnet | {"pretrained": str(damaged)}, "damaged.pth cannot be read as weights")
    whole = tmp_path / "whole.pth"
    torch.save(resnet18.state_dict(), whole)
    refused(resnet | {"pretrained": str(whole), "width": 32}, "make the sizes equal")
    refused(resnet | {"pretrained": str(whole), "depths": [3, 2, 2, 2]}, "of another architecture")
    refused(VIT | {"pretrained": str(tmp_path)}, "no ViT in", resolution=32)
    refused(VIT | {"pretrained": str(vit[1]), "layers": 3}, "has 2 layers, the network 3", resolution=32)
    heads = 2 * VIT["heads"]
    refused(VIT | {"pretrained": str(vit[1]), "heads": heads}, f"heads, the network {heads}; make", resolution=32)
    shutil.copytree(vit[1], tmp_path / "part")
    drop(tmp_path / "part" / "model.safetensors", "layers.1.")
    refused(VIT | {"pretrained": str(tmp_path / "part")}, r"part lacks \d+ weights, such as ", resolution=32)


def test_no_pickle_is_loaded_from_the_folder_of_a_transformer(vit, tmp_path):
    network, folder = vit
    shutil.copy(folder / "config.json", tmp_path)
    for content in (network.state_dict(), {"weights": torch.save}):
        torch.save(content, tmp_path / "pytorch_model.bin")
        with pytest.raises(WeightsError, match=r"no ViT in .*; give a folder or hub name$"):
            build(VIT | {"pretrained": str(tmp_path)}, seed=0, resolution=32)


def test_a_pickle_that_runs_code_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    path = tmp_path / "evil.pth"
    torch.save({"conv1.weight": Evil()}, path)
    with pytest.raises(WeightsError, match="cannot be read as weights"):
        build({"family": "resnet_classifier", "classes": 4, "pretrained": str(path)}, seed=0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("change", [{"norm": "layer"}, {"block": "wide"}, {"depths": [1, 1]}, {"classes": 0}])
def test_impossible_sizes_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        build(SMALL | change, seed=0)
