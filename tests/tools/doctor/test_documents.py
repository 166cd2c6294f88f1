from __future__ import annotations

import re

from image_service.tools.doctor.examination import ALL_CHECKS
from image_service.tools.doctor.rules import ClientProfile, Rule, judge
from tests.acceptance.service import CHECKOUT

PAGE = (CHECKOUT / "docs" / "doctor.md").read_text()


def test_page_lists_every_check_and_profile() -> None:
    rows = re.findall(r"^\| (`[a-z`, -]+`) \|", PAGE, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(name for name in listed if name in ALL_CHECKS) == sorted(ALL_CHECKS)
    assert all(f"`{profile}`" in PAGE for profile in ClientProfile)


def test_every_judgement_names_its_source() -> None:
    assert len(set(ALL_CHECKS)) == len(ALL_CHECKS)
    assert all(judge(rule, profile).source for rule in Rule for profile in (None, *ClientProfile))
