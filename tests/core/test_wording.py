"""Text for messages: suggestions for misspelled names."""

from __future__ import annotations

from multiverse.core.wording import did_you_mean, nearest

KNOWN = ["learning_rate", "batch_size", "Ant-v5", "Ant-v4"]


def test_nearest_name_ignores_case_and_dashes() -> None:
    assert nearest("Learning-Rate", KNOWN) == nearest("lerning_rate", KNOWN) == ["learning_rate"]
    assert nearest("ant-v5", KNOWN, most=2) == ["Ant-v5", "Ant-v4"]
    assert nearest("zzz", KNOWN) == []


def test_hint_is_the_nearest_name_or_the_list_of_names() -> None:
    assert did_you_mean("batchsize", KNOWN) == "Did you mean batch_size?"
    assert did_you_mean("lr_", KNOWN, others=["lr"]) == "Did you mean lr?"
    many = [f"setting_{number}" for number in range(30)]
    assert did_you_mean("zzz", [*many, "lazy"]).count(",") == 2 and "The nearest are: lazy" in did_you_mean(
        "zzz", [*many, "lazy"]
    )
    assert did_you_mean("zzz", ["b", "a"]) == "There are: a, b" and did_you_mean("zzz", []) == "There are: none"
