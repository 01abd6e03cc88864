"""A page opened in headless Chromium, and asked for something."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")


def ask(page: str, question: str, folder: Path) -> Any:
    """What the JavaScript expression `question` is, as JSON, once the page has loaded."""
    answer = f'JSON.stringify({question}, (_, value) => Number.isNaN(value) ? "NaN" : value)'
    script = f"""<script>addEventListener("load", () => {{
        const answer = document.createElement("pre");
        answer.id = "answer";
        answer.textContent = {answer};
        document.body.append(answer);
    }});</script>"""
    path = folder / "asked.html"
    path.write_text(page.replace("</body>", f"{script}</body>"), encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900",
        f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
    found = re.search(r'<pre id="answer">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found, f"the page gave no answer:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
    return json.loads(html.unescape(found[1]))
