"""Networks of the user: their inputs, construction and validation; feature extractors of
Stable-Baselines3 compute the same as there."""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor
from stable_baselines3.common.torch_layers import NatureCNN as CNNofSB3
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecTransposeImage
from torch import Tensor, nn

from multiverse.algorithms import A2C, DQN, PPO, SAC, Outputs, RolloutBatch
from multiverse.algorithms.algorithm import OwnNetwork, network_inputs, observation_layout
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Path, leaves
from multiverse.learning.loss import Loss
from multiverse.learning.network_spec import CustomNetwork, ObservationLayout
from multiverse.networks import (
    MLP,
    NETWORKS,
    NatureCNN,
    SmallCNN,
    TeamAttention,
    checked_network,
    network_class,
    network_name,
)
from multiverse.networks.extractors import create_network
from multiverse.policies.features import Features
from tests.networks.own_networks import FromSB3, Parts, Stateful, Wide

ROWS = 5
BIG = spaces.Box(0, 255, (40, 44, 3), np.uint8)
SMALL_IMAGE = spaces.Box(0, 255, (20, 20, 3), np.uint8)
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
MASK = spaces.Box(0, 1, (2,), np.int8)
MIXED = spaces.Dict(
    image=BIG,
    first=spaces.Box(0, 255, (3, 40, 44), np.uint8),
    matrix=spaces.Box(-2, 2, (3, 2), np.float64),
    kind=spaces.Discrete(3),
    kinds=spaces.MultiDiscrete([2, 4]),
    flags=spaces.MultiBinary(3),
)
NESTED = spaces.Dict(
    b=spaces.Dict(x=VECTOR, deep=spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(0, 10, (2,), np.uint8)])),
    a=SMALL_IMAGE,
    action_mask=MASK,
)


def samples(space: spaces.Space[Any], rows: int = ROWS) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(rows)]


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def in_leaves(space: spaces.Space[Any], values: list[Any]) -> dict[Path, Any]:
    return {leaf.path: np.array([at(value, leaf.path) for value in values]) for leaf in leaves(space)}


def features_of(space: spaces.Space[Any]) -> tuple[Features, ObservationLayout]:
    features = Features(space, spaces.Discrete(2), small_images=True)
    return features, observation_layout(features, space)


def given(space: spaces.Space[Any], values: list[Any]) -> Any:
    """The observations that a network of the user gets."""
    features, layout = features_of(space)
    vector, images = network_inputs(features, in_leaves(space, values), None)
    return layout.observation(torch.as_tensor(vector), [torch.as_tensor(image) for image in images])


def choice(make: Callable[..., Any], space: spaces.Space[Any], name: str = "Net") -> CustomNetwork:
    return CustomNetwork(name, make, features_of(space)[1])


def in_sb3(space: spaces.Space[Any], values: list[Any]) -> tuple[spaces.Space[Any], Any]:
    """(the space, preprocessed observations) that SB3 passes to a feature extractor."""
    if isinstance(space, spaces.Dict):
        batch: Any = {key: np.array([value[key] for value in values]) for key in space}
        shown = copy.deepcopy(space)
        for key, one in space.items():
            if one.dtype == np.uint8 and len(one.shape or ()) == 3 and one.shape[2] < one.shape[0]:  # type: ignore[index]
                shown[key], batch[key] = VecTransposeImage.transpose_space(one), np.moveaxis(batch[key], -1, 1)
    else:
        shown, batch = space, np.array(values)
        if len(space.shape or ()) == 3:
            shown, batch = VecTransposeImage.transpose_space(space), np.moveaxis(batch, -1, 1)
    return shown, preprocess_obs(obs_as_tensor(batch, torch.device("cpu")), shown)


# -- what networks get -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("extractor", "space"),
    [
        (CNNofSB3, BIG),
        (FromSB3, SMALL_IMAGE),
        (CombinedExtractor, MIXED),
        (FlattenExtractor, VECTOR),
        (FlattenExtractor, spaces.Discrete(5)),
        (FlattenExtractor, spaces.MultiDiscrete([3, 2])),
        (FlattenExtractor, spaces.MultiBinary(4)),
    ],
)
def test_extractors_of_sb3_compute_the_same_features_as_in_sb3(extractor: Any, space: spaces.Space[Any]) -> None:
    module, size = create_network(choice(extractor, space))
    values = samples(space)
    shown, preprocessed = in_sb3(space, values)
    original = extractor(shown)
    original.load_state_dict(module.state_dict())
    with torch.no_grad():
        features = module(given(space, values))
        assert torch.equal(features, original(preprocessed)) and features.std() > 0
    assert features.shape == (ROWS, size) and original.features_dim == size


def test_order_of_dict_observations_is_that_of_the_space() -> None:
    ordered = spaces.Dict(collections.OrderedDict([("z", VECTOR), ("a", spaces.Discrete(2)), ("m", VECTOR)]))
    seen: list[Any] = []
    create_network(choice(lambda space: seen.append(space) or Parts(space), ordered))
    assert list(seen[0]) == list(given(ordered, samples(ordered))) == list(ordered)


def test_network_is_made_for_the_space_that_its_observations_have() -> None:
    spaces_seen: list[Any] = []
    create_network(choice(lambda space: spaces_seen.append(space) or Parts(space), NESTED))
    (space,) = spaces_seen
    assert sorted(space) == ["a", "b"]
    assert space["a"] == spaces.Box(0, 255, (3, 20, 20), np.uint8)
    assert space["b"] == NESTED["b"]


def test_values_of_nested_observations_are_floats_one_hot_vectors_and_scaled_images() -> None:
    values = samples(NESTED)
    observation = given(NESTED, values)
    assert observation.keys() == {"a", "b"} and observation["b"].keys() == {"x", "deep"}
    raw = in_leaves(NESTED, values)
    image = torch.as_tensor(raw["a",]).permute(0, 3, 1, 2) / 255.0
    assert torch.equal(observation["a"], image)
    assert torch.equal(observation["b"]["x"], torch.as_tensor(raw["b", "x"]))
    kind, bytes_ = observation["b"]["deep"]
    assert torch.equal(kind, torch.nn.functional.one_hot(torch.as_tensor(raw["b", "deep", 0]) - 5, 3).float())
    assert torch.equal(bytes_, torch.as_tensor(raw["b", "deep", 1]).float())  # up to 10: not scaled
    every = [observation["a"], observation["b"]["x"], kind, bytes_]
    assert all(one.dtype == torch.float32 for one in every)


def test_bytes_up_to_255_of_non_images_are_scaled_in_their_shape() -> None:
    space = spaces.Box(0, 255, (2, 3), np.uint8)
    values = samples(space)
    assert torch.equal(given(space, values), torch.as_tensor(np.array(values)) / 255.0)


def test_normalization_is_split_by_leaf_and_never_of_images() -> None:
    space = spaces.Dict(a=VECTOR, b=SMALL_IMAGE, c=spaces.Box(-1, 1, (2, 2), np.float32))
    features, layout = features_of(space)
    raw = in_leaves(space, samples(space))
    shift, scale = np.arange(8, dtype=np.float32), np.full(8, 0.5, np.float32)
    vector, images = network_inputs(features, raw, (shift, scale))
    observation = layout.observation(torch.as_tensor(vector), [torch.as_tensor(one) for one in images])
    assert np.array_equal(observation["a"], (raw["a",] - shift[:4]) * scale[:4])
    assert np.array_equal(observation["c"], ((raw["c",].reshape(ROWS, 4) - shift[4:]) * scale[4:]).reshape(ROWS, 2, 2))
    assert torch.equal(observation["b"], torch.as_tensor(raw["b",]).permute(0, 3, 1, 2) / 255.0)


# -- construction -------------------------------------------------------------------------------------------
def learner(kind: Any, space: spaces.Space[Any], make: Any, seed: int = 1, agents: int = 1, **settings: Any) -> Any:
    actions = spaces.Box(-1, 1, (2,)) if kind is SAC else spaces.Discrete(2)
    more = {} if agents == 1 else {"agents": agents}
    network: OwnNetwork = ("Net", make)
    return kind(kind.Config(**settings), space, actions, 4, seed, network=network, **more)


@pytest.mark.parametrize("kind", [PPO, A2C, SAC, DQN])
def test_first_weights_depend_only_on_the_seed(kind: Any) -> None:
    torch.manual_seed(1)
    first = learner(kind, VECTOR, Stateful).weights()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again, other = (learner(kind, VECTOR, Stateful, seed).weights() for seed in (1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(np.array_equal(first[name], again[name]) for name in first if name != "fixed")
    assert any(not np.array_equal(first[name], other[name]) for name in first if name != "fixed")
    assert all(np.array_equal(value, again["fixed"][name]) for name, value in first["fixed"].items())


class Failing(Wide):
    def forward(self, observations: Tensor) -> Tensor:
        return self.layer(observations[:, :3])


class NotFloat(Wide):
    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations).long()


class OneAxis(Wide):
    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations)[:, 0]


class Two(Wide):
    def forward(self, observations: Tensor) -> Any:
        return super().forward(observations), observations


class WrongSize(Wide):
    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations)[:, :3]


class Unused(Wide):
    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.never = nn.LazyLinear(2)


class InPlace(Wide):
    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations.sub_(0.5))


class Detached(Wide):
    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations).detach()


class WithoutGradients(Wide):
    @torch.no_grad()
    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations)


class NoInit(nn.Module):
    def __init__(self, observation_space: spaces.Box) -> None:
        self.layer = nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Failing, r"network=Net: forward\(\) failed for observations of .*: RuntimeError: mat1 and mat2"),
        (NotFloat, r"network=Net: forward\(\) returned torch.int64: expected floats"),
        (OneAxis, r"network=Net: forward\(\) returned shape \(2,\) for 2 observations: expected .*\(2, features_dim\)"),
        (lambda space: nn.AdaptiveAvgPool1d(0), r"forward\(\) returned shape \(2, 0\) for 2 observations"),
        (Two, r"network=Net: forward\(\) returned tuple for 2 observations"),
        (WrongSize, r"network=Net: forward\(\) returned 3 features, and features_dim is 8"),
        (Unused, r"network=Net: layer 'never' is lazy, and forward\(\) does not use it"),
        (InPlace, r"network=Net: forward\(\) changed its observations in place, .*x = x - 0.5 instead of x -= 0.5"),
        (Detached, r"network=Net: forward\(\) returned features without a gradient, .*detach\(\)"),
        (WithoutGradients, r"network=Net: forward\(\) returned features without a gradient"),
        (NoInit, r"network=Net cannot be created for Box\(.*AttributeError.*own_network.py, line"),
        (lambda space: torch.zeros(3), r"network=Net returned Tensor: .* must return a torch.nn.Module"),
        (lambda space: nn.Linear(7, 7), r"network=Net: forward\(\) failed for observations of Box"),
        (lambda space, other: None, r"network=Net cannot be created for Box\(.*missing 1 required positional argument"),
    ],
)
def test_mistakes_in_a_network_are_reported_before_anything_starts(make: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        learner(PPO, VECTOR, make)


def test_error_in_forward_names_the_line_of_the_user() -> None:
    with pytest.raises(InvalidRequest) as caught:
        learner(PPO, VECTOR, Failing)
    line = inspect.getsourcelines(Failing.forward)[1] + 1
    assert f"({__file__}, line {line})" in str(caught.value)


def test_arguments_that_a_network_does_not_take_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"Net cannot be created .*unexpected keyword argument 'width'$"):
        learner(PPO, VECTOR, functools.partial(Wide, width=3))


def test_features_dim_may_be_left_out_and_lazy_layers_are_allowed() -> None:
    module, size = create_network(choice(lambda space: nn.Sequential(nn.Flatten(), nn.LazyLinear(7)), VECTOR))
    assert size == 7 and module[1].in_features == 4


def test_weights_of_another_precision_become_float32() -> None:
    module, _ = create_network(choice(lambda space: Wide(space).double(), VECTOR))
    assert {one.dtype for one in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", [PPO, SAC])
def test_module_that_a_function_returns_each_time_is_copied(kind: Any) -> None:
    pretrained = Wide(VECTOR)
    before = pretrained.layer.weight.clone()
    algorithm = learner(kind, VECTOR, lambda space: pretrained)
    modules = algorithm._network_modules().values()
    inner = {one for module in modules for one in module.modules() if isinstance(one, Wide)}
    assert len({id(one.layer.weight) for one in [*inner, pretrained]}) == 3
    assert all(torch.equal(one.layer.weight, before) for one in inner)
    for one in inner:
        one.layer.weight.data.zero_()
    assert torch.equal(pretrained.layer.weight, before)


def test_network_without_trained_parameters_is_allowed() -> None:
    create_network(choice(lambda space: Wide(space).requires_grad_(False), VECTOR))
    create_network(choice(lambda space: nn.Flatten(), VECTOR))


def test_network_with_noise_in_evaluation_mode_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Noisy(Wide):
        def forward(self, observations: Tensor) -> Tensor:
            return super().forward(observations) + torch.randn(8)

    create_network(choice(Stateful, VECTOR))
    assert not caplog.messages
    create_network(choice(Noisy, VECTOR))
    (message,) = caplog.messages
    assert "network=Net is random in evaluation mode" in message
    assert "cannot be reproduced" in message


def test_features_of_another_number_of_rows_are_refused_in_training() -> None:
    class TwoRows(Wide):
        def forward(self, observations: Tensor) -> Tensor:
            return super().forward(observations)[:2]

    algorithm = learner(PPO, VECTOR, TwoRows)
    with pytest.raises(InvalidRequest, match=r"network=Net: forward\(\) returned shape \(2, 8\) for 5 observations"):
        algorithm._networks.actor(torch.zeros(ROWS, 4), [])


def test_error_of_a_network_that_cannot_be_copied_has_the_reason() -> None:
    class Keeping(Wide):
        def forward(self, observations: Tensor) -> Tensor:
            self.last = super().forward(observations)
            return self.last

    class Holding(Wide):
        def __init__(self, space: Any) -> None:
            super().__init__(space)
            self.lock = threading.Lock()

    with pytest.raises(InvalidRequest, match="must not keep tensors of its last forward pass in attributes"):
        learner(PPO, VECTOR, Keeping)
    for kind in (PPO, DQN):
        with pytest.raises(InvalidRequest, match=r"the network cannot be copied: TypeError: cannot pickle .*lock"):
            learner(kind, VECTOR, Holding)


# -- in the networks of algorithms -------------------------------------------------------------------------------
def pull(networks: Any, batch: RolloutBatch, by_policy: float, grad_value: float) -> Tensor:
    def loss(out: Outputs, rows: Any) -> Loss:
        return Loss((by_policy * out.log_prob + grad_value * out.values).sum())

    networks.gradient(batch, loss)
    found: Tensor = networks.actor.extract.inner.layer.weight.grad.clone()
    return found


def test_shared_network_is_one_instance_with_both_gradients() -> None:
    apart, shared = (learner(PPO, VECTOR, Wide, share_features=share) for share in (False, True))
    networks = shared._networks
    assert networks.critic.extract.inner is networks.actor.extract.inner
    assert apart._networks.critic.extract.inner is not apart._networks.actor.extract.inner
    assert len(apart.weights()["parameters"]) - len(shared.weights()["parameters"]) == 5 * 8
    batch = RolloutBatch(torch.randn(6, 4), [], torch.zeros(6, dtype=torch.long))
    one, other, both = (pull(networks, batch, *by) for by in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)))
    assert one.abs().max() > 0 and other.abs().max() > 0
    torch.testing.assert_close(one + other, both)


@pytest.mark.parametrize("share", [False, True])
def test_central_critic_applies_one_network_to_each_member(share: bool) -> None:
    algorithm = learner(PPO, VECTOR, Wide, agents=2, critic="central", share_features=share)
    networks = algorithm._networks
    extract = networks.critic.extract
    assert (extract.inner is networks.actor.extract.inner) == share
    own, mate = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():
        found = extract(torch.cat([own, mate], -1), [])
        assert torch.equal(found, torch.cat([extract.inner(own), extract.inner(mate)], -1))
        absent = extract(torch.cat([own, torch.zeros(3, 4)], -1), [])
    assert torch.equal(absent[:, :8], found[:, :8]) and not absent[:, 8:].any()


def test_outputs_hold_features_hidden_units_and_logits() -> None:
    algorithm = learner(PPO, VECTOR, Wide, hidden_sizes=(5, 3))
    found: list[Outputs] = []

    def loss(out: Outputs, rows: RolloutBatch) -> Loss:
        found.append(out)
        assert torch.equal(rows.observations, rows.vector)
        return Loss(out.values.sum() + out.log_prob.sum())

    batch = RolloutBatch(torch.randn(6, 4), [], torch.zeros(6, dtype=torch.long))
    batch.layout = algorithm._layout
    algorithm._networks.gradient(batch, loss)
    (out,) = found
    actor = algorithm._networks.actor
    with torch.no_grad():
        assert torch.equal(out.features, actor.extract.inner(batch.vector))
        assert torch.equal(out.logits, actor.dense[-1](out.hidden))
    assert out.features.shape == (6, 8) and out.hidden.shape == (6, 3) and out.logits.shape == (6, 2)


# -- built-in networks, and names --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("network", "space", "size"),
    [
        (MLP, NESTED["b"], 64),
        (lambda space: MLP(space, hidden_sizes=(7, 5)), spaces.MultiDiscrete([2, 3]), 5),
        (NatureCNN, BIG, 512),
        (SmallCNN, SMALL_IMAGE, 128),
        (lambda space: SmallCNN(space, features_dim=9), spaces.Box(-1, 1, (2, 5, 6), np.float32), 9),
        (SmallCNN, spaces.Dict(board=spaces.Box(0, 1, (6, 7, 2), np.int8), action_mask=MASK), 128),
    ],
)
def test_built_in_networks_fit_their_spaces(network: Any, space: spaces.Space[Any], size: int) -> None:
    assert create_network(choice(network, space))[1] == size


@pytest.mark.parametrize(("shape", "channels"), [((2, 6, 7), 2), ((6, 7, 2), 2), ((16, 8, 8), 16), ((8, 8, 20), 20)])
def test_small_cnn_detects_the_channel_axis_of_boards(shape: tuple[int, ...], channels: int) -> None:
    module, _ = create_network(choice(SmallCNN, spaces.Box(-1, 1, shape, np.float32)))
    assert module.layers[0].in_channels == channels


@pytest.mark.parametrize(
    ("network", "space", "message"),
    [
        (NatureCNN, SMALL_IMAGE, "an image of 20 × 20 is too small .*SmallCNN"),
        (NatureCNN, VECTOR, "NatureCNN needs one image or board as observation"),
        (SmallCNN, NESTED, "SmallCNN needs one image or board as observation"),
    ],
)
def test_built_in_networks_refuse_other_spaces(network: Any, space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        create_network(choice(network, space))


def test_public_networks_can_be_parts_of_user_networks() -> None:
    class Entities(nn.Module):
        def __init__(self, observation_space: spaces.Box) -> None:
            super().__init__()
            self.embed, self.attend = nn.Linear(2, 8), TeamAttention(8, num_heads=2)

        def forward(self, observations: Tensor) -> Tensor:
            present = observations.any(-1)
            return self.attend(self.embed(observations), present).sum(1)

    module, size = create_network(choice(Entities, spaces.Box(-1, 1, (3, 2), np.float32)))
    assert size == 8
    entities = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]], [[3.0, 4.0], [1.0, 2.0], [0.0, 0.0]]])
    with torch.no_grad():
        first, second = module(entities)
    torch.testing.assert_close(first, second)  # in any order


def test_every_built_in_network_is_found_by_its_name() -> None:
    assert {name: network_name(network_class(name)) for name in NETWORKS} == {name: name for name in NETWORKS}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("small_cn", "network='small_cn' does not exist: expected mlp, .*Did you mean small_cnn"),
        ("tests.networks.own_networks.Wide", "Did you mean tests.networks.own_networks:Wide"),
        ("tests.networks.own_networks:Wid", "network='tests.networks.own_networks:Wid' cannot be imported: .*'Wid'"),
        ("no_such_module:Net", "cannot be imported: ModuleNotFoundError"),
        ("nowhere.py:Net", "there is no file .*nowhere.py"),
        ("nets.py", "network=.nets.py. does not exist: .*Did you mean nets.py:Name"),
        ("json:__name__", "network: json:__name__ is an instance of str"),
    ],
)
def test_unknown_network_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        network_class(name)


def test_name_of_a_network_imports_that_network() -> None:
    assert network_class(network_name(Wide)) is Wide
    local = type("Local", (Wide,), {"__qualname__": "somewhere.<locals>.Local"})
    shadowed = type("Wide", (Wide,), {"__module__": Wide.__module__, "__qualname__": "Wide"})
    unnamed = functools.partial(Wide, features_dim=3)
    names = [network_name(one) for one in (local, shadowed, unnamed, lambda space: Wide(space))]
    assert names == ["<Local>", "<Wide>", "<Wide>", "<lambda>"]


@pytest.mark.parametrize("network", [Wide(VECTOR), 3, nn.ReLU()])
def test_instance_is_refused_as_a_network(network: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"an instance of .*: expected a class, or a function"):
        checked_network(network)
