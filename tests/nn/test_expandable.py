import torch

from grace.base.randomness import generator
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet


def small(seed: int = 0) -> CifarResNet:
    return CifarResNet(8, 3, generator(seed, "test"))


def network(num_backbones: int, num_classes: int) -> ExpandableNetwork:
    head = LinearHead(64 * num_backbones, num_classes, generator(9, "head"))
    return ExpandableNetwork([small(seed) for seed in range(num_backbones)], head)


def test_features_are_concatenated_in_order_and_the_head_reads_them() -> None:
    both = network(2, 5).eval()
    images = torch.randn(3, 3, 8, 8)
    first, second = (backbone(images) for backbone in both.backbones)
    features = both.features(images)
    assert torch.equal(features[:, :64], first)
    assert torch.equal(features[:, 64:], second)
    weight, bias = both.head.weight, both.head.bias
    expected = first @ weight[:, :64].T + second @ weight[:, 64:].T + bias
    torch.testing.assert_close(both(images), expected)


def test_parameters_with_and_without_heads() -> None:
    # Ten ResNet-32 and 100 classes: docs/protocols.md#resnet-32 and 640·100 weights + 100 biases.
    backbones = [CifarResNet(32, 3, generator(0, "test")) for _ in range(2)]
    counts = ExpandableNetwork(
        backbones, LinearHead(128, 100, generator(0, "head"))
    ).num_parameters()
    assert counts.backbones == 2 * 463_504
    assert counts.heads == 128 * 100 + 100
    assert counts.total == 2 * 463_504 + 12_900


def test_bytes_of_weights_and_buffers() -> None:
    # ResNet-8 by hand: convolutions 432 + 2·2304 + 4608 + 9216 + 18432 + 36864 weights; batch norms
    # over 16·3 + 32·2 + 64·2 = 240 channels: 2 weights and 2 statistics each, in 7 modules with one
    # 8-byte counter; head 64·5 + 5. float32 has 4 bytes.
    convolutions = 432 + 2 * 2304 + 4608 + 9216 + 18432 + 36864
    expected = 4 * (convolutions + 4 * 240 + 64 * 5 + 5) + 7 * 8
    assert network(1, 5).num_bytes() == expected


def test_copy_shares_nothing_and_carries_no_gradients() -> None:
    original = network(1, 2).train()
    loss = original(torch.randn(4, 3, 8, 8)).square().sum()
    for parameter, gradient in zip(
        original.parameters(), torch.autograd.grad(loss, list(original.parameters())), strict=True
    ):
        parameter.grad = gradient
    clone = copy_of(original)
    assert all(parameter.grad is None for parameter in clone.parameters())
    assert all(parameter.grad is not None for parameter in original.parameters())
    states = zip(original.state_dict().values(), clone.state_dict().values(), strict=True)
    for one, two in states:
        assert torch.equal(one, two)
        assert one.data_ptr() != two.data_ptr()


def test_graph_can_be_captured_whole() -> None:
    both = network(2, 5).eval()
    images = torch.randn(2, 3, 8, 8)
    captured = torch.compile(both, backend="eager", fullgraph=True)
    torch.testing.assert_close(captured(images), both(images))
    exported = torch.export.export(both, (images,)).module()
    torch.testing.assert_close(exported(images), both(images))
