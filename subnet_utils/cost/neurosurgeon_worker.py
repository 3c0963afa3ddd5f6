"""A step of mask training in NeuroSurgeon 0.1.0, made on demand: one line in, one line out.

Run by the Python of an environment that has `neurosurgeon==0.1.0` and `transformers==4.46.3`; nothing of this package
is there. Arguments: a JSON object with family, start (first masked layer or stage, from 1; 0 is a ResNet's stem),
examples (of four items, a batch) and threads; for bert layers, width, heads, mlp_width, vocabulary and tokens (a
sentence), for resnet block, depths, width and resolution (pixels). Prints "ready", then a step's seconds for every line
that it reads, until the input ends.
"""

import json
import sys
import time

import torch
from NeuroSurgeon.Models import model_configs
from NeuroSurgeon.Models.circuit_model import CircuitModel
from torch.nn import functional
from transformers import BertConfig, BertModel, ResNetConfig, ResNetModel


def bert(setting):
    """BERT, its inputs, and the layer that each of its linear layers is in; the pooler is behind all of them."""
    config = BertConfig(
        num_hidden_layers=setting["layers"], hidden_size=setting["width"], num_attention_heads=setting["heads"],
        intermediate_size=setting["mlp_width"], vocab_size=setting["vocabulary"], hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertModel(config)
    tokens = torch.randint(1, setting["vocabulary"], (4 * setting["examples"], setting["tokens"]))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    pooler = setting["layers"] + 1
    layers = {name: pooler if name.startswith("pooler") else int(name.split(".")[2]) + 1 for name in linear}
    return model, inputs, layers, lambda output: output.last_hidden_state[:, 0]


def resnet(setting):
    """A ResNet, its inputs, and the stage that each of its convolutions is in; the stem is 0."""
    expansion = 4 if setting["block"] == "bottleneck" else 1
    config = ResNetConfig(
        embedding_size=setting["width"], hidden_sizes=[setting["width"] * expansion * 2**i for i in range(4)],
        depths=setting["depths"], layer_type=setting["block"],
    )  # fmt: skip
    model = ResNetModel(config)
    inputs = {"pixel_values": torch.randn(4 * setting["examples"], 3, setting["resolution"], setting["resolution"])}
    convolutions = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d)]
    stages = {name: 0 if name.startswith("embedder") else int(name.split(".")[2]) + 1 for name in convolutions}
    return model, inputs, stages, lambda output: output.pooler_output.flatten(1)


def circuit(model, targets):
    """The network with continuous sparsification of some of its layers."""
    options = {"ablation": "none", "mask_unit": "weight", "mask_bias": False, "mask_init_value": 0.05}
    wanted = model_configs.CircuitConfig("continuous_sparsification", options, targets, True, True, 1e-8)
    return CircuitModel(wanted, model)


def main():
    """Build the network, say so, and make a step for every line of the input."""
    setting = json.loads(sys.argv[1])
    torch.set_num_threads(setting["threads"])
    torch.manual_seed(0)
    network, inputs, places, embed = {"bert": bert, "resnet": resnet}[setting["family"]](setting)
    model = circuit(network, [name for name, place in places.items() if place >= setting["start"]])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    odd = torch.randint(4, (setting["examples"],))

    def step():
        optimizer.zero_grad()
        embeddings = embed(model(**inputs))
        directions = functional.normalize(embeddings.view(setting["examples"], 4, -1), dim=-1)
        logits = -(directions @ directions.sum(dim=1).unsqueeze(-1)).squeeze(-1)
        loss = functional.cross_entropy(logits, odd) + model.config.l0_lambda * model._compute_l0_loss()
        loss.backward()
        optimizer.step()

    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        step()
        print(time.perf_counter() - started, flush=True)


main()
