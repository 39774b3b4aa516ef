"""A training step on a GPU against the same step on a CPU."""

import pytest
import torch
from tiny_training import SHAPE, TARGET, load_target, made_up_texts, make_batches, make_step
from torch.testing import assert_close

from dspark.engine.models.target import Target
from dspark.engine.training.documents import Documents
from dspark.engine.training.evaluate import evaluate
from dspark.engine.training.optimizer import DraftOptimizer
from dspark.engine.training.settings import TrainSettings

pytestmark = pytest.mark.gpu
SETTINGS = TrainSettings(steps=1, rows=4, row_tokens=64, anchors=8)


def step_on(target, batches):
    step = make_step(SETTINGS, batches, shape=SHAPE, target=target)
    torch.manual_seed(2)
    weights = {
        name: tensor + 0.1 * torch.randn(tensor.shape).to(tensor) for name, tensor in step.model.state_dict().items()
    }
    step.model.load_state_dict(weights)
    return step


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-3), ("bfloat16", 0.15)])
def test_loss_and_gradients_are_those_of_the_cpu(dtype, rtol):
    batches = make_batches(Documents.from_texts(made_up_texts(30), most_tokens=64), SETTINGS)
    on_cpu = step_on(load_target(), batches)
    on_gpu = step_on(Target.load(TARGET, device=torch.device("cuda"), dtype=dtype), batches)
    on_gpu.model.load_state_dict(on_cpu.model.state_dict())
    host = batches.batch(0)
    losses = [step(host).loss for step in (on_cpu, on_gpu)]
    for loss in losses:
        loss.backward()
    assert_close(losses[1].cpu(), losses[0], atol=0, rtol=1e-5 if dtype == "float32" else 1e-2)
    theirs = dict(on_gpu.model.named_parameters())
    for name, parameter in on_cpu.model.named_parameters():
        error = (theirs[name].grad.cpu() - parameter.grad).norm() / parameter.grad.norm()
        # Signs of q - p near 0 fall either way in a narrow format.
        assert error < rtol, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_in_bfloat16_learns(optimizer):
    settings = TrainSettings(steps=60, rows=4, row_tokens=64, anchors=8, optimizer=optimizer, learning_rate=4e-3)
    batches = make_batches(Documents.from_texts(made_up_texts(12), most_tokens=64), settings)
    step = make_step(settings, batches, target=Target.load(TARGET, device=torch.device("cuda"), dtype="bfloat16"))
    moves = DraftOptimizer(step.model, settings)
    before = evaluate(step, batches.once(), at_step=0)
    for index in range(settings.steps):
        step(batches.batch(index)).loss.backward()
        moves.step(settings.learning_rate)
    after = evaluate(step, batches.once(), at_step=settings.steps)
    assert after.loss < 0.9 * before.loss


def test_a_step_waits_for_nothing():
    batches = make_batches(Documents.from_texts(made_up_texts(30), most_tokens=64), SETTINGS)
    step = make_step(SETTINGS, batches, target=Target.load(TARGET, device=torch.device("cuda"), dtype="bfloat16"))
    moves = DraftOptimizer(step.model, SETTINGS)
    hosts = [batches.batch(index) for index in range(3)]

    def take(host):
        step(host).loss.backward()
        torch.nn.utils.clip_grad_norm_(step.model.parameters(), 1.0)
        moves.step(1e-3)

    # Compiles and allocates.
    take(hosts[0])
    take(hosts[1])
    torch.cuda.set_sync_debug_mode("error")
    try:
        take(hosts[2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
