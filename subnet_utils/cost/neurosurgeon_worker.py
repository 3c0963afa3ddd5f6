"""The seconds of two steps of mask training in NeuroSurgeon 0.1.0, a line each.

Run by the Python of an environment that has `neurosurgeon==0.1.0` and `transformers==4.46.3`; nothing of this package
is there. Arguments: the network, the first masked layer or stage (from 1; 0 is a ResNet's stem), examples (of four
items) a batch, and threads. Networks and batches are those of `step_times`.
"""

import sys
import time

import torch
from NeuroSurgeon.Models import model_configs
from NeuroSurgeon.Models.circuit_model import CircuitModel
from torch.nn import functional
from transformers import BertConfig, BertModel, ResNetConfig, ResNetModel


def bert_small(items):
    """BERT-small, its inputs, and what of its output is an embedding."""
    sizes = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
    config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tokens = torch.randint(1, config.vocab_size, (items, 12))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return BertModel(config), inputs, lambda output: output.last_hidden_state[:, 0]


def resnet18(items):
    """The same of ResNet18."""
    config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    inputs = {"pixel_values": torch.randn(items, 3, 128, 128)}
    return ResNetModel(config), inputs, lambda output: output.pooler_output.flatten(1)


def place(name):
    """The layer or stage that a module is in; the pooler is behind all of them."""
    part, *rest = name.split(".")
    return int(rest[1]) + 1 if part == "encoder" else {"embedder": 0, "pooler": 5}[part]


def circuit(model, start):
    """The network with continuous sparsification of its linear layers or convolutions from a place on."""
    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    names = [name for name, module in model.named_modules() if isinstance(module, kinds) and place(name) >= start]
    options = {"ablation": "none", "mask_unit": "weight", "mask_bias": False, "mask_init_value": 0.05}
    config = model_configs.CircuitConfig("continuous_sparsification", options, names, True, True, 1e-8)
    return CircuitModel(config, model)


def main(network, start, examples, threads):
    """Make two steps: in the first one memory is taken."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network, inputs, embed = {"bert_small": bert_small, "resnet18": resnet18}[network](4 * examples)
    model = circuit(network, start)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    odd = torch.randint(4, (examples,))
    for _ in range(2):
        started = time.perf_counter()
        optimizer.zero_grad()
        directions = functional.normalize(embed(model(**inputs)).view(examples, 4, -1), dim=-1)
        logits = -(directions @ directions.sum(dim=1).unsqueeze(-1)).squeeze(-1)
        loss = functional.cross_entropy(logits, odd) + model.config.l0_lambda * model._compute_l0_loss()
        loss.backward()
        optimizer.step()
        print(time.perf_counter() - started)


main(sys.argv[1], *map(int, sys.argv[2:]))
