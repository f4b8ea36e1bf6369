"""Reading parts of the RAM, and the types of its numbers."""

from __future__ import annotations

from multiverse.envs.game_boy.game_file import RamField
from multiverse.envs.game_boy.ram import LARGEST_GAP, Ram


class Memory:
    """Memory in which every byte is the lowest byte of its address; it keeps the requested addresses."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __getitem__(self, part: slice) -> list[int]:
        self.asked.append((part.start, part.stop))
        return [address & 0xFF for address in range(part.start, part.stop)]


FIELDS = [
    RamField("far", 0xD000),
    RamField("one", 0xC010),
    RamField("bit", 0xC011, bit=4, max=1),
    RamField("off", 0xC011, bit=1, max=1),
    RamField("two_bytes", 0xC012, bytes=2, max=65535),
    RamField("three", 0xC014, count=3, max=20),
    RamField("pairs", 0xC018, bytes=2, count=2, feature=False),
    RamField("inside", 0xC015, values=32),
    RamField("near", 0xC01C + LARGEST_GAP, feature=False),
]


def test_fields_are_read_in_few_blocks_with_correct_values() -> None:
    memory = Memory()
    assert Ram(FIELDS).read(memory) == {
        "far": 0,
        "one": 0x10,
        "bit": 1,
        "off": 0,
        "two_bytes": 0x1312,
        "three": (0x14, 0x15, 0x16),
        "pairs": (0x1918, 0x1B1A),
        "inside": 0x15,
        "near": 0x1C + LARGEST_GAP,
    }
    assert memory.asked == [(0xC010, 0xC01D + LARGEST_GAP), (0xD000, 0xD001)], "in two parts"


def test_features_are_in_the_order_of_the_fields() -> None:
    ram = Ram(FIELDS)
    features = ram.features(ram.read(Memory())).tolist()
    assert ram.num_features == len(features) == 8 + 32
    assert [round(one, 4) for one in features[:8]] == [0, 0.0627, 1, 0, round(0x1312 / 65535, 4), 1, 1, 1]
    assert features[8:] == [float(k == 0x15) for k in range(32)]


def test_ram_can_be_read_with_one_field_or_none() -> None:
    assert Ram(FIELDS[1:2]).read(Memory()) == {"one": 0x10}
    assert Ram([]).read(Memory()) == {} and Ram([]).num_features == 0


def test_unknown_value_gives_a_zero_one_hot_vector() -> None:
    assert Ram([RamField("room", 0xC010, values=4)]).features({"room": 9}).tolist() == [0, 0, 0, 0]


def test_position_can_be_relative_to_another_field() -> None:
    ram = Ram([RamField("x", 0xC010, feature=False), RamField("foes", 0xC011, count=4, max=32, origin="x")])
    assert ram.features({"x": 100, "foes": (100, 116, 84, 0)}).tolist() == [0.5, 0.75, 0.25, 0.0]
    assert ram.features({"x": 0, "foes": (255, 32, 8, 0)}).tolist() == [1.0, 1.0, 0.625, 0.5]
    wide = Ram([RamField("x", 0xC010, bytes=2), RamField("far", 0xC012, bytes=2, max=1000, origin="x")])
    assert wide.features({"x": 1500, "far": 1000}).tolist()[1] == 0.25
