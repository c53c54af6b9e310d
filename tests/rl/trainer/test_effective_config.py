"""What a trainer runs with, against what it was asked."""

from types import SimpleNamespace

import pytest

from arcnb.errors import ArcnbError
from arcnb.rl.trainer.effective_config import check_effective


def test_a_setting_that_the_trainer_changed_is_refused_and_named():
    asked = {
        "scale_rewards": "group",
        "epsilon_high": 0.2,
        "report_to": "none",
        "learning_rate": 1e-5,
        "bf16": False,
        "top_k": 0,
    }
    same = SimpleNamespace(
        scale_rewards="group", epsilon_high=0.2, report_to=[], learning_rate=1e-5, bf16=False, top_k=-1
    )
    table = check_effective(asked, same)
    assert table[table["reason"] != ""]["setting"].tolist() == ["report_to", "top_k"]
    changed = SimpleNamespace(**vars(same) | {"scale_rewards": False, "epsilon_high": 0.28})
    with pytest.raises(ArcnbError, match=r"scale_rewards was asked as 'group' and is False; epsilon_high"):
        check_effective(asked, changed)
    table = check_effective(asked, changed, accept=True).set_index("setting")
    assert (table["reason"] != "").sum() == 4
    assert table.loc["epsilon_high"].tolist() == ["0.2", "0.28", "UNEXPLAINED"]
    assert table.loc["learning_rate", "reason"] == ""


def test_a_flag_is_not_the_number_one():
    with pytest.raises(ArcnbError, match="bf16 was asked as True and is 1"):
        check_effective({"bf16": True}, SimpleNamespace(bf16=1))
