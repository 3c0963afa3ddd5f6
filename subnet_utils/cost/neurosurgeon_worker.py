"""A step of mask training in NeuroSurgeon 0.1.0, made on demand: one line in, one line out.

Run by the Python of an environment that has `neurosurgeon==0.1.0` and `transformers==4.46.3`; nothing of this package
is there. Arguments: a JSON object with layers, width, heads, mlp_width, vocabulary, start (first masked layer, from 1),
examples (of four sentences, a batch), tokens (a sentence), threads. Prints "ready", then a step's seconds for every
line that it reads, until the input ends.
"""

import json
import sys
import time

import torch
from NeuroSurgeon.Models import model_configs
from NeuroSurgeon.Models.circuit_model import CircuitModel
from torch.nn import functional
from transformers import BertConfig, BertModel


def circuit(setting):
    """BERT with continuous sparsification of the linear layers from `start` on and of the pooler."""
    config = BertConfig(
        num_hidden_layers=setting["layers"], hidden_size=setting["width"], num_attention_heads=setting["heads"],
        intermediate_size=setting["mlp_width"], vocab_size=setting["vocabulary"], hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertModel(config)
    first = setting["start"] - 1
    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and (name.startswith("pooler") or int(name.split(".")[2]) >= first)
    ]
    options = {"ablation": "none", "mask_unit": "weight", "mask_bias": False, "mask_init_value": 0.05}
    wanted = model_configs.CircuitConfig("continuous_sparsification", options, targets, True, True, 1e-8)
    return CircuitModel(wanted, model)


def main():
    """Build the network, say so, and make a step for every line of the input."""
    setting = json.loads(sys.argv[1])
    torch.set_num_threads(setting["threads"])
    torch.manual_seed(0)
    model = circuit(setting)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    shape = (4 * setting["examples"], setting["tokens"])
    tokens = torch.randint(1, setting["vocabulary"], shape)
    odd = torch.randint(4, (setting["examples"],))

    def step():
        optimizer.zero_grad()
        embeddings = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state[:, 0]
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
