"""The code of docs/integrations.md runs as it stands there, each block by itself."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=range(1, len(BLOCKS) + 1))
def test_a_block_runs(block: str) -> None:
    for host in ("lightning", "monai", "nnunetv2", "segmentation_models_pytorch"):
        if re.search(rf"^(import|from) {host}\b", block, re.MULTILINE):
            pytest.importorskip(host, reason=f"{host} is not installed: make test-hosts")
    exec(block, {"__name__": "block"})


def test_the_page_has_code() -> None:
    assert len(BLOCKS) >= 5
