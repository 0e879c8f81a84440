"""The training loop's pieces: they learn, survive a NaN, and leave whole files."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from demo.train.loop import PATIENCE, Clock, Curve, Trainer, load_weights, save_weights


def step(trainer: Trainer, loss: torch.Tensor) -> bool:
    trainer.optimizer.zero_grad()
    loss.backward()
    return trainer.update(loss)


def fit(module: nn.Module, trainer: Trainer, steps: int) -> float:
    generator = torch.Generator().manual_seed(0)
    loss = torch.zeros(())
    for _ in range(steps):
        x = torch.randn(64, 4, generator=generator)
        loss = (module(x) - 2 * x).square().mean()
        assert step(trainer, loss)
    return float(loss.detach())


def test_learns() -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 4)
    trainer = Trainer(module, Clock(1e9), rate=3e-2, warmup=10, decay=0.9)
    assert fit(module, trainer, 300) < 1e-2
    assert torch.allclose(trainer.average["weight"], 2 * torch.eye(4), atol=0.05)


def test_a_step_without_a_finite_gradient_changes_nothing() -> None:
    module = nn.Linear(4, 4)
    trainer = Trainer(module, Clock(1e9), rate=1e-2)
    before = module.weight.detach().clone()
    assert not step(trainer, module(torch.full((1, 4), float("nan"))).sum())
    assert torch.equal(module.weight, before)
    assert trainer.skipped == 1


def test_many_such_steps_take_the_average_back() -> None:
    module = nn.Linear(4, 4)
    trainer = Trainer(module, Clock(1e9), rate=1e-2)
    fit(module, trainer, 5)
    good = {name: average.clone() for name, average in trainer.average.items()}
    module.weight.data.fill_(float("nan"))
    for _ in range(PATIENCE):
        step(trainer, module(torch.ones(1, 4)).sum())
    assert torch.equal(module.weight, good["weight"])
    fit(module, trainer, 5)
    assert torch.isfinite(module.weight).all()


def test_the_rate_warms_up_and_ends_at_zero() -> None:
    clock = Clock(1e9)
    trainer = Trainer(nn.Linear(2, 2), clock, rate=1.0, warmup=10)
    assert trainer.current_rate() == pytest.approx(0.1)
    trainer.steps = 100
    assert trainer.current_rate() == pytest.approx(1.0)
    clock.start -= 2e9
    assert clock.done
    assert trainer.current_rate() == pytest.approx(0.0)


def test_weights_and_curve_are_whole_files(tmp_path) -> None:
    module, other = nn.Linear(4, 4), nn.Linear(4, 4)
    save_weights(dict(module.named_parameters()), tmp_path / "a" / "w.safetensors")
    assert load_file(tmp_path / "a" / "w.safetensors")["weight"].dtype == torch.float16
    load_weights(other, tmp_path / "a" / "w.safetensors")
    assert torch.equal(other.weight, module.weight.half().float())
    curve = Curve(tmp_path / "a" / "curve.json", {"seed": 1})
    curve.add(step=1, loss=0.5)
    curve.write(done=True)
    assert json.loads(curve.file.read_text()) == {"seed": 1, "done": True, "curve": [{"step": 1.0, "loss": 0.5}]}
    assert sorted(f.name for f in (tmp_path / "a").iterdir()) == ["curve.json", "w.safetensors"]
