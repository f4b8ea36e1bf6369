"""Log-probabilities and entropies, against torch's own distributions; acting samples from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multiverse.learning.distributions import Categorical, DiagonalGaussian, MultiCategorical
from multiverse.policies.heads import DiscreteHead, GaussianHead, MultiDiscreteHead

ROWS = 7


def test_categorical_equals_torch() -> None:
    output, actions = torch.randn(ROWS, 4), torch.randint(4, (ROWS,))
    log_prob, entropy = Categorical(4).log_prob_and_entropy(torch, output, actions, None)
    theirs = torch.distributions.Categorical(logits=output)
    torch.testing.assert_close(log_prob, theirs.log_prob(actions))
    torch.testing.assert_close(entropy, theirs.entropy())


def test_multi_categorical_is_the_product_of_its_parts() -> None:
    counts, output = [2, 3, 4], torch.randn(ROWS, 9)
    actions = torch.stack([torch.randint(count, (ROWS,)) for count in counts], dim=1)
    log_prob, entropy = MultiCategorical(counts).log_prob_and_entropy(torch, output, actions, None)
    theirs = [torch.distributions.Categorical(logits=part) for part in output.split(counts, dim=1)]
    torch.testing.assert_close(log_prob, sum(d.log_prob(actions[:, i]) for i, d in enumerate(theirs)))
    torch.testing.assert_close(entropy, sum(d.entropy() for d in theirs))


def test_gaussian_equals_torch() -> None:
    ours, output, actions = DiagonalGaussian(3), torch.randn(ROWS, 3), torch.randn(ROWS, 3)
    ours.log_std = torch.full((3,), -0.5)
    log_prob, entropy = ours.log_prob_and_entropy(torch, output, actions, None)
    theirs = torch.distributions.Normal(output, ours.log_std.exp())
    torch.testing.assert_close(log_prob, theirs.log_prob(actions).sum(-1))
    torch.testing.assert_close(entropy, theirs.entropy().sum(-1))


@pytest.mark.parametrize(
    ("distribution", "open_to"), [(Categorical(3), [[1, 0, 1]]), (MultiCategorical([2, 2]), [[1, 0, 0, 1]])]
)
def test_closed_actions_have_no_probability_and_no_gradient(
    distribution: Categorical | MultiCategorical, open_to: list[list[int]]
) -> None:
    masks = torch.tensor(open_to, dtype=torch.bool)
    output = torch.zeros(1, distribution.outputs, requires_grad=True)
    action = torch.zeros(1, dtype=torch.int64) if isinstance(distribution, Categorical) else torch.tensor([[0, 1]])
    log_prob, entropy = distribution.log_prob_and_entropy(torch, output, action, masks)
    (log_prob + entropy).sum().backward()
    assert output.grad is not None and (output.grad[~masks] == 0).all() and torch.isfinite(entropy).all()
    expected = np.log(0.5) if isinstance(distribution, Categorical) else 0.0
    assert float(log_prob.detach()) == pytest.approx(expected, abs=1e-6)


def test_acting_policy_samples_from_the_learned_distribution() -> None:
    """100,000 samples of the numpy head have the probabilities of the softmax in the loss."""
    logits, head = np.array([[0.5, -1.0, 1.5]], np.float32), DiscreteHead(3)
    noise = head.noise(np.random.default_rng(0), 1, 100_000)[0]
    drawn = head.choose(np.repeat(logits, 100_000, axis=0), noise, None)
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert shares == pytest.approx(torch.softmax(torch.from_numpy(logits[0]), 0).numpy(), abs=0.01)


def test_policy_never_takes_closed_actions() -> None:
    rng, rows = np.random.default_rng(1), 1000
    masks = np.tile(np.array([[False, True, False, True, True]]), (rows, 1))
    output = np.tile(np.array([[9.0, 0.0, 9.0, 0.0, 0.0]], np.float32), (rows, 1))
    one = DiscreteHead(5)
    assert set(one.choose(output, one.noise(rng, 1, rows)[0], masks).tolist()) == {1, 3, 4}
    several = MultiDiscreteHead((2, 3), np.zeros(2, int), (2,))
    chosen = several.choose(output, several.noise(rng, 1, rows)[0], masks)
    assert set(map(tuple, chosen.tolist())) == {(1, 1), (1, 2)}


def test_actions_are_clipped_for_the_env_and_unchanged_for_the_learner() -> None:
    head = GaussianHead(np.array([0.5, 0.5], np.float32), np.array([-1, -2]), np.array([1, 2]), (2, 1))
    raw = np.array([[3.0, -0.5], [0.2, -9.0]], np.float32)
    assert head.for_env(raw) == pytest.approx(np.array([[[1.0], [-0.5]], [[0.2], [-2.0]]]))
    assert (raw[0, 0], raw[1, 1]) == (3.0, -9.0)
