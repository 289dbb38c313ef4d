"""The documents name what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_webgpu.config import Config

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/environment.md"])
def test_environment_variables_are_listed(page: str) -> None:
    known = set(re.findall(r"TORCH_WEBGPU_[A-Z]+", Config.__doc__ or ""))
    assert set(re.findall(r"TORCH_WEBGPU_[A-Z]+", (ROOT / page).read_text())) == known


def test_links_lead_to_files() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
