"""Adam and RMSprop equal torch's, in numpy and in torch; a gradient that is not finite changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import multiverse as mv
from multiverse.learning.optimizers import Adam, RMSprop

BEGIN = np.arange(4, dtype=np.float32)
in_both = pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
of_both_kinds = pytest.mark.parametrize(
    ("kind", "theirs"), [(Adam, torch.optim.Adam), (RMSprop, torch.optim.RMSprop)], ids=["adam", "rmsprop"]
)


def gradients(count: int) -> list[Any]:
    return list(np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32))


def stepped(xp: Any, kind: Any, all_gradients: list[Any]) -> tuple[Any, list[bool]]:
    """Weights after these gradients, and which gradients were applied."""
    optimizer = kind(xp, xp.asarray(BEGIN.copy()))
    taken = []
    for gradient in all_gradients:
        optimizer.gradient[...] = xp.asarray(gradient)
        taken.append(bool(optimizer.step(0.1, max_norm=1.5)))
    return optimizer, taken


@in_both
@of_both_kinds
def test_optimizer_steps_equal_torch_with_clipping(xp: Any, kind: Any, theirs: Any) -> None:
    reference = torch.nn.Parameter(torch.from_numpy(BEGIN.copy()))
    optimizer = theirs([reference], lr=0.1, eps=1e-5)
    for gradient in gradients(50):
        reference.grad = torch.from_numpy(gradient.copy())
        torch.nn.utils.clip_grad_norm_([reference], 1.5)
        optimizer.step()
    ours, taken = stepped(xp, kind, gradients(50))
    np.testing.assert_allclose(ours.weights(), reference.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert all(taken) and ours.state()["steps"] == 50


@pytest.mark.fault("B5")
@in_both
@of_both_kinds
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38])
def test_non_finite_gradient_changes_nothing(xp: Any, kind: Any, theirs: Any, bad: float) -> None:
    """Whether it is the first gradient or a later one: weights and state are bit-equal to those without it."""
    good, wrong = gradients(6), np.array([1, bad, bad, 0], np.float32)
    clean, _ = stepped(xp, kind, good)
    spoilt, taken = stepped(xp, kind, [wrong, *good[:3], wrong, wrong, *good[3:]])
    assert taken == [False, True, True, True, False, False, True, True, True]
    assert (spoilt.weights() == clean.weights()).all() and repr(spoilt.state()) == repr(clean.state())


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_optimizer_step_does_not_wait_for_a_gpu(kind: Any) -> None:
    """On the meta device reading a value is an error; on a GPU an early read would wait for the GPU."""
    optimizer = kind(torch, torch.zeros(4, device="meta"))
    for _ in range(3):
        assert optimizer.step(0.1, 0.5).is_meta and optimizer.parameters.is_meta


@pytest.mark.fault("D6")
@in_both
def test_weights_of_other_networks_are_refused(xp: Any) -> None:
    optimizer, _ = stepped(xp, Adam, gradients(3))
    before = repr(optimizer.state())
    with pytest.raises(mv.errors.InvalidRequest, match=r"the saved algorithm has 7 parameters .*other sizes"):
        optimizer.load_weights(np.zeros(7))
    for wrong in ({"first": np.zeros(3)}, {"second": np.zeros((4, 1))}, {"steps": -1}):
        with pytest.raises(ValueError, match="do not belong"):
            optimizer.load({**optimizer.state(), **wrong})
    assert repr(optimizer.state()) == before
