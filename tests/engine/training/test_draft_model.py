"""The training forward against the drafter that decodes, and against the float64 oracle."""

import json
from itertools import pairwise

import pytest
import torch
from dense_drafter import DenseDrafter
from safetensors.torch import load_file
from tiny_training import CPU, MASK, SHAPE, TARGET, load_target, made_up_texts, make_batches, make_step
from torch.testing import assert_close

from dspark.engine.models.drafter import Drafter
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.training.checkpoint import RunFolder
from dspark.engine.training.documents import Documents
from dspark.engine.training.settings import DrafterShape, TrainSettings

SETTINGS = TrainSettings(steps=1, rows=3, row_tokens=64, anchors=6)
SHAPES = {
    "vanilla": SHAPE,
    "gated": DrafterShape(layers=1, markov_rank=8, markov_head="gated", feature_layers=(-1, 3, 5)),
    "rnn": DrafterShape(layers=2, markov_rank=8, markov_head="rnn", feature_layers=(0, 2, 4), block_size=5),
    "none": DrafterShape(layers=1, markov_head="none", feature_layers=(1,)),
}


def shaken(step):
    """Weights far from where they start, where heads are zero and norms one; rounded as they are stored."""
    torch.manual_seed(1)
    for name, parameter in step.model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif "markov" in name or "confidence" in name:
            torch.nn.init.normal_(parameter, std=0.3)
        parameter.data = parameter.data.bfloat16().float()
    return step


@pytest.mark.parametrize("kind", SHAPES)
def test_blocks_of_packed_texts_are_those_of_each_text_alone(kind, tmp_path):
    shape = SHAPES[kind]
    documents = Documents.from_texts(made_up_texts(12), most_tokens=64)
    batches = make_batches(documents, SETTINGS, block_size=shape.block_size)
    target = load_target()
    step = shaken(make_step(SETTINGS, batches, shape=shape, target=target))
    host = batches.batch(0)
    batch, taught = step.teach(host)
    drafted = step.draft(batch, taught)
    step.head.update(None if step.model.markov_head is None else step.model.markov_head.markov_w2.weight)
    seen = drafted.hidden if drafted.into_w2 is None else torch.cat((drafted.hidden, drafted.into_w2), dim=1)
    logits = step.head.logits(seen).detach()

    RunFolder(tmp_path).save_drafter(step.model, num_anchors=6)
    oracle = DenseDrafter(
        json.loads((tmp_path / "config.json").read_text()),
        load_file(tmp_path / "model.safetensors"),
        embed=target.embed.weight,
        head=target.head.weight,
    )
    width, gamma = SETTINGS.row_tokens, shape.block_size
    checked = 0
    for row in range(host.num_rows):
        for place, (anchor, first) in enumerate(zip(host.anchor_columns[row], host.first_columns[row], strict=True)):
            block = row * SETTINGS.anchors + place
            mine = (host.slots // gamma) == block
            if not mine.any():
                continue
            text = host.token_ids.reshape(-1, width)[row]
            features = taught.features.view(-1, width, taught.features.shape[1])[row, first:anchor]
            start = int(anchor - first)
            hidden = oracle.hidden(features, int(text[anchor]), start)
            slots = host.slots[mine] % gamma
            assert_close(drafted.hidden[mine].double(), hidden[slots], atol=1e-4, rtol=1e-4)
            expected, confidence = teacher_forced(oracle, hidden, text[anchor : anchor + gamma])
            assert_close(logits[mine].double(), expected[slots], atol=1e-4, rtol=1e-4)
            assert_close(drafted.confidence[mine].double(), confidence[slots], atol=1e-4, rtol=1e-4)
            checked += 1
    assert checked > 8


def teacher_forced(oracle, hidden, previous):
    """Logits and confidence logits of the oracle's block behind the text's own tokens."""
    c, w = oracle.config, oracle.w
    logits, confidence = hidden @ oracle.head.T, []
    state = torch.zeros(c["markov_rank"]).double()
    for k, token in enumerate(previous.tolist()):
        seen = hidden[k]
        if c["markov_rank"]:
            e = into_w2 = w["markov_head.markov_w1.weight"][token]
            if c["markov_head_type"] == "gated":
                gate = w["markov_head.gate_proj.weight"] @ torch.cat((hidden[k], e)) + w["markov_head.gate_proj.bias"]
                into_w2 = gate.sigmoid() * e
            if c["markov_head_type"] == "rnn":
                joint = w["markov_head.joint_proj.weight"] @ torch.cat((state, e, hidden[k]))
                g, candidate, o = (joint + w["markov_head.joint_proj.bias"]).view(3, -1)
                state = g.sigmoid() * state + (1 - g.sigmoid()) * candidate.tanh()
                into_w2 = o.tanh()
            logits[k] += w["markov_head.markov_w2.weight"] @ into_w2
            seen = torch.cat((seen, e))
        confidence.append(w["confidence_head.proj.weight"][0] @ seen + w["confidence_head.proj.bias"][0])
    return logits, torch.stack(confidence)


@pytest.mark.parametrize("kind", SHAPES)
def test_what_is_saved_loads_as_a_drafter_with_every_weight(kind, tmp_path):
    batches = make_batches(Documents.from_texts(made_up_texts(4), most_tokens=64), SETTINGS)
    step = shaken(make_step(SETTINGS, batches, shape=SHAPES[kind]))
    RunFolder(tmp_path).save_drafter(step.model, num_anchors=6)
    config = DrafterConfig.from_folder(tmp_path)
    assert config == step.model.config
    assert config.mask_token_id == MASK
    target = load_target()
    drafter = Drafter.load(tmp_path, target=target, device=CPU, dtype="float32")
    assert drafter.embed is target.embed
    assert drafter.head is target.head
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == step.model.state_dict().keys()
    assert all(torch.equal(stored[name].float(), tensor) for name, tensor in step.model.state_dict().items())


def test_features_are_those_of_transformers():
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(TARGET).eval()
    documents = Documents.from_texts(made_up_texts(9), most_tokens=64)
    batches = make_batches(documents, SETTINGS)
    step = make_step(SETTINGS, batches)
    host = batches.batch(0)
    _, taught = step.teach(host)
    for first, last in pairwise(host.query_starts):
        with torch.no_grad():
            output = reference(torch.from_numpy(host.token_ids[None, first:last]), output_hidden_states=True)
        expected = torch.cat([output.hidden_states[layer + 1][0] for layer in (0, 2, 4)], dim=-1)
        assert_close(taught.features[first:last], expected, atol=1e-4, rtol=1e-4)
        assert_close(taught.hidden[first:last], output.hidden_states[-1][0], atol=1e-4, rtol=1e-4)


def test_gradients_reach_every_weight():
    batches = make_batches(Documents.from_texts(made_up_texts(12), most_tokens=64), SETTINGS)
    step = shaken(make_step(SETTINGS, batches, shape=SHAPES["gated"]))
    step(batches.batch(0)).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in step.model.parameters())
